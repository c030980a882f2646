/* sink_memory.h - arrays that a plan fills (output_file.memory). */
#ifndef FERRY_CKPT_SINK_MEMORY_H
#define FERRY_CKPT_SINK_MEMORY_H

#include "ckpt/sink.h"

/* Needs no release. */
void sink_memory_init(struct sink *s, const struct plan *p);

#endif
