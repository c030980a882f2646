/* Configs that the builder refuses: the message names the field and what the
 * engine computes. */
#include "train/model/builder.h"

#include "common/count.h"
#include "convert/open.h"
#include "tests/testing.h"
#include "train/model/model.h"

static struct error err;

static void llama_opened(struct opened *o)
{
    const struct source_options none = {0};
    assert_ok(opened_open(o, "tests/golden/hf/llama2", &none, NULL, false, true, &err));
}

/* Builds the program of a config on one rank, without a checkpoint. */
static enum status build(const struct model_config *config)
{
    const struct model_options o = {.elem = ELEM_F32, .config = config};
    const struct batch batch = {.num_sequences = 1, .length = 8};
    const struct pass_options options = {.logits = true, .trace_layer = -1};
    struct model m;
    struct pass p = {0};
    assert_ok(model_simulate(&m, NULL, &o, 0, &err));
    enum status st = pass_make(&p, &m, &batch, &options, &err);
    pass_release(&p);
    model_close(&m);
    return st;
}

static void a_feature_that_no_op_computes_is_refused_by_its_name(void **state)
{
    enum { POSITIONS, NORM, ROTARY, QK_NORM, HEADS, ACTIVATION, NUM_CASES };
    static const char *const says[NUM_CASES] = {
        [POSITIONS] = "position_embedding_type alibi is not supported (rope, learned",
        [NORM] = "normalization GroupNorm is not supported (RMSNorm, LayerNorm)",
        [ROTARY] = "rotary_percent 1.5: expected at most 1, the whole head",
        [QK_NORM] = "qk_layernorm is not supported with LayerNorm, only with RMSNorm",
        [HEADS] = "2097152 heads of 16 elements: expected at most 1048576 of 65536",
        [ACTIVATION] = "activation swish is not supported (silu, gelu,",
    };
    struct opened o;
    (void)state;
    llama_opened(&o);
    assert_ok(build(&o.checkpoint.config));
    for (unsigned i = 0; i < NUM_CASES; i++) {
        struct model_config c = o.checkpoint.config;
        if (i == POSITIONS) c.position_embedding_type = "alibi";
        if (i == NORM) c.normalization = "GroupNorm";
        if (i == ROTARY) c.rotary_percent = 1.5;
        if (i == QK_NORM) c.qk_layernorm = true, c.normalization = "LayerNorm";
        if (i == HEADS) c.num_attention_heads = 1 << 21, c.kv_channels = 16;
        if (i == ACTIVATION) c.activation_func = "swish";
        assert_fails(build(&c), ERR_UNSUPPORTED, says[i]);
    }
    opened_close(&o);
}

static void experts_with_biases_are_refused(void **state)
{
    struct opened o;
    (void)state;
    const struct source_options none = {0};
    assert_ok(opened_open(&o, "tests/golden/hf/qwen3-moe", &none, NULL, false, true, &err));
    struct model_config c = o.checkpoint.config;
    c.add_mlp_bias = true;
    assert_fails(build(&c), ERR_UNSUPPORTED, "experts with biases are not supported");
    opened_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_feature_that_no_op_computes_is_refused_by_its_name),
        cmocka_unit_test(experts_with_biases_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
