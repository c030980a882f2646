#include "train/cli/run_json.h"

static uint64_t size_or(uint64_t size, uint64_t otherwise)
{
    return size ? size : otherwise;
}

cJSON *run_json_new(const char *model_path, const struct compute_flags *f)
{
    cJSON *o = cJSON_CreateObject(), *sizes = cJSON_CreateObject();
    const uint64_t tp = size_or(f->layout.tp, 1);
    cJSON_AddStringToObject(o, "path", model_path);
    cJSON_AddStringToObject(o, "dtype", f->engine.dtype);
    cJSON_AddStringToObject(o, "device", f->engine.device ? f->engine.device : "cpu");
    json_add_u64(sizes, "tp", tp);
    json_add_u64(sizes, "pp", size_or(f->layout.pp, 1));
    json_add_u64(sizes, "ep", size_or(f->layout.ep, 1));
    json_add_u64(sizes, "etp", size_or(f->layout.etp, tp));
    json_add_u64(sizes, "cp", size_or(f->engine.cp, 1));
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
    json_add_u64(o, "results", x->results);
    json_add_u64(o, "loading", x->loading);
    json_add_u64(o, "communication", x->talking);
    json_add_u64(o, "peak_device", x->device);
    json_add_u64(o, "peak_host_beside_device", x->host);
    json_add_u64(o, "program", x->program);
    return o;
}

void run_json_add_plan(cJSON *o, const struct fit_memory *ranks, unsigned num_ranks)
{
    cJSON *list = cJSON_AddArrayToObject(o, "memory_bytes");
    for (unsigned i = 0; i < num_ranks; i++)
        cJSON_AddItemToArray(list, rank_json(&ranks[i], i));
}
