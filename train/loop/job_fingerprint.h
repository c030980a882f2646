/* job_fingerprint.h - digests of the requests that must be the same on all ranks of a job: ranks
 * with different programs would wait for one another for ever, or mix up their sums. */
#ifndef FERRY_TRAIN_LOOP_JOB_FINGERPRINT_H
#define FERRY_TRAIN_LOOP_JOB_FINGERPRINT_H

#include "common/sha256.h"
#include "train/loop/engine.h"

/* Of a request: the layout, the options of the passes, and the tokens. */
void fingerprint_forward(const struct forward_request *q, char text[SHA256_TEXT]);
void fingerprint_generate(const struct generate_request *q, char text[SHA256_TEXT]);
void fingerprint_bench(const struct bench_request *q, char text[SHA256_TEXT]);

#endif
