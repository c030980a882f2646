#include "train/cli/run_json.h"

#include <stdio.h>

#include "common/host_memory.h"
#include "common/numbers.h"

static uint64_t size_or(uint64_t size, uint64_t otherwise)
{
    return size ? size : otherwise;
}

cJSON *run_json_new(const char *model_path, const struct compute_flags *f)
{
    cJSON *o = cJSON_CreateObject(), *sizes = cJSON_CreateObject();
    const uint64_t tp = size_or(f->engine.layout.tp, 1);
    cJSON_AddStringToObject(o, "path", model_path);
    cJSON_AddStringToObject(o, "dtype", f->engine.dtype);
    cJSON_AddStringToObject(o, "device", f->engine.device ? f->engine.device : "cpu");
    json_add_u64(sizes, "tp", tp);
    json_add_u64(sizes, "pp", size_or(f->engine.layout.pp, 1));
    json_add_u64(sizes, "ep", size_or(f->engine.layout.ep, 1));
    json_add_u64(sizes, "etp", size_or(f->engine.layout.etp, tp));
    json_add_u64(sizes, "cp", size_or(f->engine.layout.cp, 1));
    cJSON_AddItemToObject(o, "layout", sizes);
    return o;
}

void run_json_add_tokens(cJSON *o, const struct batch *shape)
{
    json_add_u64(o, "sequences", shape->num_sequences);
    json_add_u64(o, "length", shape->length);
}

static cJSON *rank_json(const struct fit_memory *x, unsigned rank)
{
    cJSON *o = cJSON_CreateObject();
    json_add_u64(o, "rank", rank);
    json_add_u64(o, "parameters_and_caches", x->parameters);
    json_add_u64(o, "inputs_outputs_and_activations", x->passes);
    json_add_u64(o, "coded_weights", x->coded.bytes);
    json_add_u64(o, "results", x->results);
    json_add_u64(o, "loading", x->loading);
    json_add_u64(o, "communication", x->talking);
    json_add_u64(o, "peak_device", x->device);
    json_add_u64(o, "peak_host_beside_device", x->host);
    json_add_u64(o, "program", x->program);
    return o;
}

bool takes_plan(const struct compute_flags *f)
{
    return f->output.json || (f->engine.dry_run && !f->output.verbose);
}

/* A rank on a GPU also needs host memory; a rank on the CPU has all memory in
 * `device`. */
static void print_plan(const struct fit_memory *ranks, unsigned num_ranks)
{
    bool on_gpu = false;
    uint64_t sum = 0;
    for (unsigned i = 0; i < num_ranks; i++) {
        on_gpu |= ranks[i].host > 0;
        sum += ranks[i].device;
    }
    printf("memory: %s of %s for %u rank%s; %s of this host are free\n\n", bytes_text(sum),
           on_gpu ? "GPUs" : "the host", num_ranks, num_ranks == 1 ? "" : "s",
           bytes_text(host_memory_available()));
    printf("%4s %10s %10s  %-21s %-11s %-10s %-10s %s\n", "rank", on_gpu ? "GPU peak" : "peak",
           on_gpu ? "host peak" : "", "parameters and caches", "activations", "results", "loading",
           "communication");
    for (unsigned i = 0; i < num_ranks; i++) {
        const struct fit_memory *x = &ranks[i];
        printf("%4u %10s %10s  %-21s %-11s %-10s %-10s %s\n", i, bytes_text(x->device),
               on_gpu ? bytes_text(x->host) : "", bytes_text(x->parameters), bytes_text(x->passes),
               bytes_text(x->results), bytes_text(x->loading), bytes_text(x->talking));
    }
    (void)fflush(stdout); /* before messages on stderr */
}

void print_that_it_fits(const struct compute_flags *f)
{
    if (f->engine.dry_run && takes_plan(f) && !f->output.json) puts("\nIt fits.");
}

void run_json_add_plan(cJSON *o, const struct compute_flags *f, const struct fit_memory *ranks,
                       unsigned num_ranks)
{
    if (f->engine.dry_run && !f->output.json) print_plan(ranks, num_ranks);
    cJSON *list = cJSON_AddArrayToObject(o, "memory_bytes");
    for (unsigned i = 0; i < num_ranks; i++)
        cJSON_AddItemToArray(list, rank_json(&ranks[i], i));
}
