/* step_record.h - results of one finished iteration, for all logs. */
#ifndef FERRY_TRAIN_TRAINER_STEP_RECORD_H
#define FERRY_TRAIN_TRAINER_STEP_RECORD_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_ROUTER_LOSSES = 4 };

struct named_loss {
    const char *name; /* "lm loss", "load_balancing_loss", "z_loss"; static text */
    double value;
};

/* Losses and norms are those of all ranks. */
struct step_record {
    uint64_t iteration;                         /* from 1 */
    uint64_t consumed_samples, skipped_samples; /* of the whole run, this iteration included */
    uint64_t batch_size;                        /* samples of this iteration */
    uint64_t tokens;                            /* of this iteration, padding included */
    double lr, weight_decay;                    /* that the update used */
    double logged_lr;                           /* of the next update */
    struct named_loss loss;                     /* of this iteration alone */
    struct named_loss router_losses[MAX_ROUTER_LOSSES]; /* means over layers and micro-batches */
    unsigned num_router_losses;
    bool skipped;                                       /* the gradient overflowed: no update */
    bool has_grad_norm, has_params_norm, has_num_zeros; /* no grad_norm, num_zeros if skipped */
    double grad_norm;                                   /* before clipping */
    double params_norm;                                 /* after the update */
    double num_zeros;                                   /* elements of the gradient */
    double loss_scale;                                  /* after the update */
    double seconds; /* of this iteration, no evaluation and no saving in it */
    double flops;   /* of the model in this iteration, all ranks together: flops.h */
};

#endif
