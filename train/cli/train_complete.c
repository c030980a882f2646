/* train_complete.c - sets what follows from other options, as Megatron-LM's
 * validate_args does. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/ranks.h"
#include "common/text.h"
#include "train/cli/train_finish.h"

enum { MAX_RAMP_STEPS = 64 }; /* that a note prints */

static void default_to(const char **text, const char *other)
{
    if (!*text) *text = other;
}

static void default_uint(uint64_t *n, uint64_t not_given, uint64_t other)
{
    if (*n == not_given) *n = other;
}

/* A config.json stands for its folder, which has the tokenizer. */
static const char *hf_folder_of(struct arena *a, const char *path)
{
    return path && strcmp(path_base(a, path), "config.json") == 0 ? path_parent(a, path) : path;
}

static void complete_model(struct train_finish *x)
{
    struct train_options *o = x->o;
    o->hf_config = hf_folder_of(&o->arena, o->hf_config);
    o->has_model = train_line(o, "num_layers")->number && !o->use_checkpoint_args;
    o->is_hidden_dropout_given = !isnan(o->hidden_dropout);
    o->is_attention_dropout_given = !isnan(o->attention_dropout);
    const double dropout = o->has_model ? 0.1 : 0;
    if (!o->is_hidden_dropout_given) o->hidden_dropout = dropout;
    if (!o->is_attention_dropout_given) o->attention_dropout = dropout;
}

static void complete_precision(struct train_finish *x)
{
    struct train_options *o = x->o;
    default_to(&o->dtype, o->bf16 ? "bf16" : o->fp16 ? "fp16" : "f32");
    if (strcmp(o->dtype, "bf16") == 0) o->bf16 = true;
    if (strcmp(o->dtype, "fp16") == 0) o->fp16 = true;
    if (o->loss_scale >= 0 && o->loss_scale <= 0) o->loss_scale = NAN; /* 0: dynamic */
    if (o->bf16) o->accumulate_allreduce_grads_in_fp32 = true;
    if (o->fp16 && isnan(o->loss_scale)) o->check_for_nan_in_loss_and_grad = false;
}

/* --recompute-activations is the older name of selective. */
static void complete_recompute(struct train_options *o)
{
    if (o->recompute_activations || o->moe_layer_recompute)
        default_to(&o->recompute_granularity, "selective");
}

static uint64_t at_least_one(uint64_t n)
{
    return n ? n : 1;
}

/* The fewest data parallel ranks for which ETP * EP divides TP * CP * DP. */
static uint64_t least_dp(const struct layout_options *l, uint64_t tp_cp)
{
    const uint64_t etp = l->etp ? l->etp : at_least_one(l->tp), experts = etp * at_least_one(l->ep);
    return experts / gcd_u64(experts, tp_cp);
}

/* A launcher's ranks determine dp, as in Megatron-LM; without one, --dp or the
 * fewest. */
static void complete_ranks(struct train_finish *x)
{
    struct layout_options *l = &x->o->layout;
    const uint64_t tp = at_least_one(l->tp), cp = at_least_one(l->cp), pp = at_least_one(l->pp);
    struct ranks ranks;
    struct error why;
    const uint64_t sizes[] = {tp, cp, pp, l->ep, l->etp, l->dp};
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i] > MAX_RANKS_OF_A_JOB) {
            train_problem(x, "the layout has a size of %" PRIu64 ", above the maximum of %d",
                          sizes[i], MAX_RANKS_OF_A_JOB);
            return;
        }
    if (tp * cp * pp > MAX_RANKS_OF_A_JOB) {
        train_problem(x, "the layout has more than %d ranks", MAX_RANKS_OF_A_JOB);
        return;
    }
    if (ranks_from_environment(&ranks, &why)) {
        train_problem(x, "%s", why.text);
        return;
    }
    if (!l->dp) l->dp = ranks.size > 1 ? ranks.size / (tp * cp * pp) : least_dp(l, tp * cp);
    if (l->dp > MAX_RANKS_OF_A_JOB / (tp * cp * pp))
        train_problem(x, "the layout has more than %d ranks", MAX_RANKS_OF_A_JOB);
    else if (ranks.size > 1 && tp * cp * pp * l->dp != ranks.size)
        train_problem(x,
                      "the launcher started %u ranks, but the layout has TP %" PRIu64
                      " times CP %" PRIu64 " times PP %" PRIu64 " times DP %" PRIu64,
                      ranks.size, tp, cp, pp, l->dp);
}

static void complete_training(struct train_options *o)
{
    const uint64_t dp = at_least_one(o->layout.dp);
    uint64_t least;
    o->is_global_batch_size_given = o->global_batch_size > 0;
    if (!o->global_batch_size && mul_u64(o->micro_batch_size, dp, &least))
        o->global_batch_size = least;
    default_uint(&o->eval_global_batch_size, 0, o->global_batch_size);
    default_uint(&o->eval_micro_batch_size, 0, o->micro_batch_size);
    o->is_eval_iters_given = o->eval_iters != UINT64_MAX;
    default_uint(&o->eval_iters, UINT64_MAX, 100);
    o->is_seed_given = o->seed != UINT64_MAX;
    default_uint(&o->seed, UINT64_MAX, 1234);
}

/* "969, 30, 1" may be one word or three; scripts of Megatron-LM quote it twice. */
static const char *split_of(struct train_options *o)
{
    struct strbuf text = {0};
    for (size_t i = 0; i < o->split_words.count; i++) {
        const bool has_comma = !i || text_ends_with(text.data, ",");
        if (!has_comma) strbuf_add_char(&text, ',');
        for (const char *p = o->split_words.items[i]; *p; p++)
            if (*p != '\'' && *p != '"') strbuf_add_char(&text, *p);
    }
    const char *split = text.length ? arena_copy_text(&o->arena, text.data) : NULL;
    strbuf_release(&text);
    return split;
}

/* The schedule that grows as --rampup-batch-size START INCREMENT SAMPLES did
 * (core/num_microbatches_calculator.py of 0.17), in arena; NULL: these words are
 * no ramp to --global-batch-size. */
static const char *schedule_of_ramp(struct train_options *o)
{
    uint64_t words[3], tokens;
    const char *out = NULL;
    if (o->rampup_batch_size.count != COUNT(words) || !o->seq_length) return NULL;
    for (size_t i = 0; i < COUNT(words); i++) {
        char *end;
        words[i] = strtoull(o->rampup_batch_size.items[i], &end, 10);
        if (*end) return NULL;
    }
    const uint64_t start = words[0], increment = words[1], samples = words[2];
    if (!start || !increment || start >= o->global_batch_size ||
        (o->global_batch_size - start) % increment)
        return NULL;
    const uint64_t steps = (o->global_batch_size - start) / increment;
    if (steps > MAX_RAMP_STEPS) return NULL;
    for (uint64_t k = 0; k <= steps; k++) {
        const uint64_t from = (uint64_t)ceil((double)samples * (double)k / (double)steps);
        if (!mul_u64(from, o->seq_length, &tokens)) return NULL;
        out = arena_printf(&o->arena, "%s%s%" PRIu64 ":%" PRIu64, out ? out : "", out ? "," : "",
                           tokens, start + k * increment);
    }
    return out;
}

static void note_ramp(struct train_finish *x)
{
    const char *schedule = schedule_of_ramp(x->o);
    if (!x->o->rampup_batch_size.count) return;
    train_note(x,
               "--rampup-batch-size is ignored, as by Megatron-Core 0.18.2 and later; up to 0.17.1 "
               "batches grow%s%s",
               schedule ? ", as with --step-batch-size-schedule " : "", schedule ? schedule : "");
}

static void complete_data(struct train_finish *x)
{
    struct train_options *o = x->o;
    o->split = split_of(o);
    const bool by_part =
        o->train_data_path.count || o->valid_data_path.count || o->test_data_path.count;
    if (o->data_path.count && !o->split && !by_part) {
        o->split = "969, 30, 1";
        train_note(x, "no --split: using 969,30,1, the default of Megatron-LM");
    }
    note_ramp(x);
}

/* Weight decay is constant, or has a style and both ends. */
static void complete_weight_decay(struct train_finish *x)
{
    struct train_options *o = x->o;
    const bool is_constant = strcmp(o->weight_decay_incr_style, "constant") == 0;
    const bool has_start = !isnan(o->start_weight_decay), has_end = !isnan(o->end_weight_decay);
    if (is_constant && (has_start || has_end))
        train_problem(x, "%s needs --weight-decay-incr-style linear or cosine",
                      has_start ? "--start-weight-decay" : "--end-weight-decay");
    if (!is_constant && !(has_start && has_end))
        train_problem(x,
                      "--weight-decay-incr-style %s needs --start-weight-decay and "
                      "--end-weight-decay",
                      o->weight_decay_incr_style);
    if (!has_start) o->start_weight_decay = o->weight_decay;
    if (!has_end) o->end_weight_decay = o->weight_decay;
}

static void complete_experts(struct train_finish *x)
{
    struct train_options *o = x->o;
    const struct arg_list *kinds = &o->moe_router_load_balancing_types;
    const struct arg_list *coeffs = &o->moe_aux_loss_coeffs;
    char *end = NULL;
    o->moe_router_load_balancing_type = kinds->count ? kinds->items[0] : "aux_loss";
    const char *kind = o->moe_router_load_balancing_type;
    const bool is_known = strcmp(kind, "aux_loss") == 0 || strcmp(kind, "seq_aux_loss") == 0 ||
                          strcmp(kind, "global_aux_loss") == 0 || strcmp(kind, "none") == 0;
    if (kinds->count > 1 || !is_known)
        train_problem(x,
                      "--moe-router-load-balancing-type %s%s is not supported (one of aux_loss, "
                      "seq_aux_loss, global_aux_loss, none)",
                      kind, kinds->count > 1 ? " ..." : "");
    if (coeffs->count > 1)
        train_problem(x, "--moe-aux-loss-coeff: give one coefficient; there is one balancing type");
    if (!coeffs->count) return;
    o->moe_aux_loss_coeff = strtod(coeffs->items[0], &end);
    if (end == coeffs->items[0] || *end || !isfinite(o->moe_aux_loss_coeff))
        train_problem(x, "--moe-aux-loss-coeff: \"%s\" is not a number", coeffs->items[0]);
}

static void complete_layout(struct train_finish *x)
{
    struct train_options *o = x->o;
    if (o->sequence_parallel && o->layout.tp <= 1) {
        o->sequence_parallel = false;
        train_note(x, "--sequence-parallel is ignored: it needs --tp above 1");
    }
    default_uint(&o->num_distributed_optimizer_instances, 0, 1);
    if (o->use_distributed_optimizer && o->num_distributed_optimizer_instances > 1)
        train_note(x,
                   "--num-distributed-optimizer-instances %" PRIu64
                   " is ignored: states are sharded over all data parallel ranks",
                   o->num_distributed_optimizer_instances);
    if (!o->device && text_equal(o->distributed_backend, "gloo")) o->device = "cpu";
}

void train_complete(struct train_finish *x)
{
    complete_model(x);
    complete_precision(x);
    complete_recompute(x->o);
    complete_ranks(x);
    complete_training(x->o);
    train_complete_batch_schedule(x);
    complete_data(x);
    complete_weight_decay(x);
    complete_experts(x);
    complete_layout(x);
}
