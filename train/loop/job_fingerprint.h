/* job_fingerprint.h - digests of what all ranks of a job must have been given alike: ranks that run
 * different programs wait for one another for ever, or take a sum for another. */
#ifndef FERRY_TRAIN_LOOP_JOB_FINGERPRINT_H
#define FERRY_TRAIN_LOOP_JOB_FINGERPRINT_H

#include "common/sha256.h"
#include "train/loop/engine.h"

/* Of a model's config and of its parameters' names and shapes; not of what they hold. */
void fingerprint_model(const struct checkpoint *c, char text[SHA256_TEXT]);

/* Of a request: how the model is cut and what is computed, for which tokens. */
void fingerprint_forward(const struct forward_request *q, char text[SHA256_TEXT]);
void fingerprint_generate(const struct generate_request *q, char text[SHA256_TEXT]);
void fingerprint_bench(const struct bench_request *q, char text[SHA256_TEXT]);

#endif
