/* job_fingerprint.h - digests of requests, which must agree on all ranks of a
 * job: ranks with different programs would wait for each other for ever, or mix
 * up their sums. */
#ifndef FERRY_TRAIN_LOOP_JOB_FINGERPRINT_H
#define FERRY_TRAIN_LOOP_JOB_FINGERPRINT_H

#include "common/sha256.h"
#include "train/loop/engine.h"

/* Digest of a request: layout, options of passes, and tokens. */
void fingerprint_forward(const struct forward_request *q, char text[SHA256_TEXT]);
void fingerprint_generate(const struct generate_request *q, char text[SHA256_TEXT]);
void fingerprint_bench(const struct bench_request *q, char text[SHA256_TEXT]);

#endif
