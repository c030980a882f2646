/* Config maps: rows in both directions, and unknown fields. */
#include "convert/map/config_map.h"

#include "common/count.h"
#include "common/json.h"
#include "convert/testing_convert.h"

static const struct config_file args = {"args", "args", true};
static const struct config_file yaml = {"run_config.yaml", "run_config", false};

static const char rows[] =
    "[{'megatron':'num_layers','args':'layers','run_config':'depth'},"
    " {'megatron':'hidden_size','args':'width'},"
    " {'megatron':'num_query_groups','value':'num_layers'},"
    " {'megatron':'rope_type','of':'args','value':'llama3','when':'args.scaled'},"
    " {'args':'scaled','write':'rope_type == \\\"llama3\\\"'},"
    " {'megatron':'rope_factor','args':'factor','when':'rope_type == "
    "\\\"llama3\\\"','default':8,'else':2.5},"
    " {'megatron':'rotary_base','args':'base','write':'rotary_base == floor(rotary_base) ? "
    "floor(rotary_base) : rotary_base'},"
    " {'megatron':'normalization','args':'dtype','how':'reference'},"
    " {'megatron':'activation_func','of':'args','value':'gelu','when':'\\\"kind\\\" in args && "
    "!args.kind'},"
    " {'megatron':'activation_func','of':'args','value':'relu','when':'args.kind == \\\"relu\\\"'},"
    " {'megatron':'hidden_dropout','args':'old','only':'import'},"
    " {'megatron':'attention_dropout','args':'new','only':'export'},"
    " {'args':'fixed','value':3}]";

/* The trees of the maps of a test, freed at its end. */
static cJSON *trees[64];
static size_t num_trees;

static const cJSON *keep(const char *text)
{
    return text ? trees[num_trees++] = json_tree(text) : NULL;
}

static int end(void **state)
{
    while (num_trees)
        cJSON_Delete(trees[--num_trees]);
    return scratch_end(state);
}

static enum status make(const struct config_file *file, const char *list, const char *inert,
                        const struct config_map **map)
{
    return config_map_make(file, &model_config_fields, keep(list), keep(inert), &scratch, map,
                           &err);
}

static const struct config_map *map_of(const struct config_file *file, const char *inert)
{
    const struct config_map *map;
    assert_ok(make(file, rows, inert, &map));
    return map;
}

static const char *written(const struct config_map *map, const struct model_config *c)
{
    struct strbuf text = {0};
    cJSON *tree = cJSON_CreateObject();
    config_map_write(map, c, tree);
    json_print(&text, tree, -1);
    const char *out = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    cJSON_Delete(tree);
    return out;
}

static struct model_config read_from(const struct config_map *map, const char *text)
{
    struct model_config c = {.hidden_size = 5};
    cJSON *tree = json_tree(text);
    config_map_read(map, tree, &scratch, &c);
    cJSON_Delete(tree);
    return c;
}

static void rows_are_read_in_their_order_where_their_conditions_hold(void **state)
{
    (void)state;
    const struct config_map *map = map_of(&args, NULL);
    struct model_config c = read_from(map, "{'layers':3,'width':7,'scaled':true,'base':10000.0,"
                                           "'dtype':{'_target_':'torch.float16'},'old':0.5}");
    assert_int_equal(c.num_layers, 3);
    assert_int_equal(c.hidden_size, 7);
    assert_int_equal(c.num_query_groups, 3);
    assert_string_equal(c.rope_type, "llama3");
    assert_true(c.rope_factor >= 8 && c.rope_factor <= 8);
    assert_true(c.rotary_base >= 10000 && c.rotary_base <= 10000);
    assert_string_equal(c.normalization, "torch.float16");
    assert_null(c.activation_func);
    assert_true(c.hidden_dropout > 0);
    c = read_from(map, "{'factor':4,'kind':false,'dtype':'torch.bfloat16'}");
    assert_null(c.rope_type);
    assert_true(c.rope_factor <= 0); /* the row does not apply */
    assert_string_equal(c.activation_func, "gelu");
    assert_string_equal(c.normalization, "torch.bfloat16");
    assert_string_equal(read_from(map, "{'kind':'relu'}").activation_func, "relu");
    assert_null(read_from(map, "{'kind':'tanh'}").activation_func);
}

static void what_a_file_lacks_or_says_by_another_type_stays(void **state)
{
    (void)state;
    const struct config_map *map = map_of(&args, NULL);
    assert_int_equal(read_from(map, "{}").hidden_size, 5);
    assert_int_equal(read_from(map, "{'width':null}").hidden_size, 5);
    assert_int_equal(read_from(map, "{'width':'7'}").hidden_size, 5);
    assert_int_equal(read_from(map, "{'width':-7}").hidden_size, 5);
}

static void conditions_constants_and_else_are_written(void **state)
{
    (void)state;
    struct model_config c = {.num_layers = 3,
                             .rope_type = "llama3",
                             .rope_factor = 32,
                             .rotary_base = 500000,
                             .normalization = "torch.half",
                             .attention_dropout = 0.5};
    assert_string_equal(written(map_of(&args, NULL), &c),
                        "{\"layers\":3,\"width\":null,\"scaled\":true,\"factor\":32.0,"
                        "\"base\":500000,\"dtype\":{\"_call_\":false,\"_target_\":\"torch.half\"},"
                        "\"new\":0.5,\"fixed\":3}");
    c.rope_type = "default", c.rotary_base = 0.5, c.normalization = NULL;
    assert_string_equal(written(map_of(&args, NULL), &c),
                        "{\"layers\":3,\"width\":null,\"scaled\":false,\"factor\":2.5,"
                        "\"base\":0.5,\"dtype\":null,\"new\":0.5,\"fixed\":3}");
}

static void a_map_has_the_rows_of_its_file(void **state)
{
    (void)state;
    struct model_config c = {.num_layers = 3, .rope_type = "llama3"};
    assert_string_equal(written(map_of(&yaml, NULL), &c), "{\"depth\":3}");
    c = read_from(map_of(&yaml, NULL), "{'depth':2,'layers':9,'scaled':true}");
    assert_int_equal(c.num_layers, 2);
    assert_int_equal(c.num_query_groups, 2);
    assert_null(c.rope_type);
}

/* ---- unknown fields ---- */

static void add(void *context, const char *name, const char *value)
{
    strbuf_printf(context, "%s %s;", name, value);
}

static void check_unknown(const struct config_map *map, const char *text, const char *expected)
{
    struct strbuf found = {0};
    cJSON *tree = json_tree(text);
    strbuf_add_text(&found, "");
    struct model_config c = {0};
    config_map_read(map, tree, &scratch, &c);
    const struct config_read read = {map, &c};
    config_unknown(&read, 1, tree, add, &found);
    assert_string_equal(found.data, expected);
    strbuf_release(&found);
    cJSON_Delete(tree);
}

static void an_unset_field_is_not_unknown(void **state)
{
    (void)state;
    const struct config_map *map = map_of(&yaml, NULL);
    check_unknown(map, "{'a':null,'b':false,'c':0,'d':0.0,'e':'','f':[],'g':{},'h':-0.0}", "");
    check_unknown(map, "{'a':true,'b':1,'c':'x','d':[0],'e':{'x':null}}",
                  "a true;b 1;c x;d [0];e {\"x\":null};");
    check_unknown(map, "{'':1}", " 1;"); /* as hostile files name it */
}

static void what_rows_name_is_known(void **state)
{
    (void)state;
    struct config_file strict = args;
    strict.lists_unknown = false;
    const struct config_map *map = map_of(&strict, NULL);
    check_unknown(
        map, "{'layers':2,'scaled':true,'factor':4,'base':1.5,'kind':'tanh','old':1,'new':1}", "");
    check_unknown(map, "{'depth':2,'kin':1,'kinds':1}", "depth 2;kin 1;kinds 1;");
    /* constants are inert with their value; a value that a row cannot take is
     * unknown */
    check_unknown(map, "{'fixed':3,'layers':'x'}", "layers x;");
    check_unknown(map, "{'fixed':4,'layers':-1,'width':1.5}", "fixed 4;layers -1;width 1.5;");
    check_unknown(map, "{'new':'x'}", ""); /* a row that is only written makes its field known */
}

static void inert_fields_are_known_by_name_value_or_glob(void **state)
{
    (void)state;
    const struct config_map *map =
        map_of(&yaml, "{'use_cache':'*','*_token_id':'*','std':[0.02],'kind':['a','b'],"
                      "'pair':[[1,2]],'rope.x':'*'}");
    check_unknown(map, "{'use_cache':true,'bos_token_id':1,'std':2e-2,'kind':'b','pair':[1,2]}",
                  "");
    check_unknown(map, "{'std':0.03,'kind':'c','pair':[2,1],'token_id':1}",
                  "std 0.03;kind c;pair [2,1];token_id 1;");
}

static void what_is_below_a_field_is_judged_by_its_own_name(void **state)
{
    (void)state;
    const struct config_map *map =
        map_of(&yaml, "{'types.*':['full'],'spec._target_':['core.gpt.*'],'spec._call_':'*',"
                      "'all':'*'}");
    check_unknown(map, "{'types':['full','full'],'spec':{'_target_':'core.gpt.x','_call_':true}}",
                  "");
    check_unknown(map,
                  "{'types':['full','some'],'spec':{'_target_':'own.x','n':2},'other':{'x':1}}",
                  "types [\"full\",\"some\"];spec._target_ own.x;spec.n 2;other {\"x\":1};");
    check_unknown(map, "{'all':{'x':[1,2]}}", "");
}

static void each_member_of_an_object_is_read(void **state)
{
    (void)state;
    static const char list[] =
        "[{'run_config':'by_layer','read':{'kv_channels':'len(file.by_layer._.size) ? "
        "file.by_layer._.size[0] : 7','num_layers':'len(file.by_layer._.size)'},"
        "'write':{'written':'kv_channels'}}]";
    const struct config_map *map;
    struct model_config c = {0};
    assert_ok(make(&yaml, list, NULL, &map));
    config_map_read(map, keep("{'by_layer':{'3':{'size':5},'9':{'other':1},'11':{'size':6}}}"),
                    &scratch, &c);
    assert_int_equal(c.kv_channels, 5);
    assert_int_equal(c.num_layers, 2);
    config_map_read(map, keep("{'by_layer':{}}"), &scratch, &c);
    assert_int_equal(c.kv_channels, 7);
    config_map_read(map, keep("{'by_layer':[1]}"), &scratch, &c);
    assert_int_equal(c.kv_channels, 7);
    /* its other members are unknown */
    check_unknown(map, "{'by_layer':{'3':{'size':5,'more':2},'9':{'size':1}}}",
                  "by_layer.3.more 2;");
}

static void false_counts_where_true_changes_nothing(void **state)
{
    (void)state;
    const struct config_map *map = map_of(&yaml, "{'is_causal':[true],'any':'*'}");
    check_unknown(map, "{'is_causal':true,'any':false}", "");
    check_unknown(map, "{'is_causal':null}", "");
    check_unknown(map, "{'is_causal':false}", "is_causal false;");
}

static void of_args_only_watched_fields_count(void **state)
{
    (void)state;
    const struct config_map *map = map_of(&args, "{'softmax_type':['vanilla'],'clamp':[]}");
    check_unknown(map, "{'lr':0.1,'seed':3,'softmax_type':'vanilla','clamp':0}", "");
    check_unknown(map, "{'lr':0.1,'softmax_type':'learnable','clamp':7}",
                  "softmax_type learnable;clamp 7;");
}

/* ---- mistakes ---- */

static void mistakes_are_refused_by_the_row(void **state)
{
    (void)state;
    static const struct {
        const char *list, *inert, *why;
    } cases[] = {
        {"{}", NULL, "config is not a list"},
        {"[{'megatron':'num_layers','hf':'a'}]", NULL, "\"hf\" is not one of"},
        {"[{'megatron':'zzz','args':'a'}]", NULL,
         "config[0] (zzz): megatron is not the name of a field"},
        {"[{'megatron':'num_layers','args':'a','when':'zzz'}]", NULL, "\"zzz\": an unknown name"},
        {"[{'args':'a','write':'zzz'}]", NULL, "\"zzz\": an unknown name"},
        {"[{'megatron':'num_layers','args':'a','value':1,'write':'num_layers'}]", NULL,
         "value does not go with read or write"},
        {"[{'megatron':'num_layers','args':'a','how':'reference','read':'1'}]", NULL,
         "how does not go with read or write"},
        {"[{'megatron':'num_layers','args':'a','default':1,'read':'args.a'}]", NULL,
         "default and null do not go with read"},
        {"[{'read':'1'}]", NULL, "an expression by itself needs the name of its field"},
        {"[{'megatron':'num_layers','read':'1','write':'2'}]", NULL, "needs the name of its field"},
        {"[{'megatron':'num_layers','write':{'a':'2'}}]", NULL, "args is required"},
        {"[{'read':{'zzz':'1'}}]", NULL, "\"zzz\" is not the name of a field"},
        {"[{'read':{'num_layers':1}}]", NULL, "num_layers: not an expression"},
        {"[{'read':{}}]", NULL, "read is empty"},
        {"[{'read':{'num_layers':'zzz'}}]", NULL, "\"zzz\": an unknown name"},
        {"[{'read':{'num_layers':'0 - 1'}}]", NULL, "num_layers is not a whole number from 0 on"},
        {"[{'read':{'gated_linear_unit':'1'}}]", NULL, "is not true or false"},
        {"[{'read':{'normalization':'1'}}]", NULL, "is not a string"},
        {"[{'read':{'rotary_base':'[]'}}]", NULL, "is not a finite number"},
        {"[{'read':{'moe_layers':'[1]'}}]", NULL, "1 values for 2 layers"},
        {"[{'megatron':'rotary_base','args':'a','read':'args.a','write':'rotary_base + 1'}]", NULL,
         "it writes rotary_base 1 so that it reads as 2"},
        {"[{'read':{'moe_layers':'args.a'},'write':{'a':'[!moe[l] for l in range(num_layers)]'}}]",
         NULL, "it writes moe_layers none so that it reads as all"},
        {"[{'megatron':'num_layers','args':'a','else':1}]", NULL, "else needs when"},
        {"[{'megatron':'num_layers','value':'hf.a'}]", NULL, "hf.a"},
        {"[{'megatron':'num_layers','args':'a','how':'activation'}]", NULL, "of another type"},
        {"[]", "[]", "inert: is not an object"},
        {"[]", "{'a':1}", "inert: a is neither"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct config_map *map;
        assert_fails(make(&args, cases[i].list, cases[i].inert, &map), ERR_USAGE, cases[i].why);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, end)
    const struct CMUnitTest tests[] = {
        TEST(rows_are_read_in_their_order_where_their_conditions_hold),
        TEST(what_a_file_lacks_or_says_by_another_type_stays),
        TEST(conditions_constants_and_else_are_written),
        TEST(a_map_has_the_rows_of_its_file),
        TEST(an_unset_field_is_not_unknown),
        TEST(what_rows_name_is_known),
        TEST(inert_fields_are_known_by_name_value_or_glob),
        TEST(what_is_below_a_field_is_judged_by_its_own_name),
        TEST(each_member_of_an_object_is_read),
        TEST(false_counts_where_true_changes_nothing),
        TEST(of_args_only_watched_fields_count),
        TEST(mistakes_are_refused_by_the_row),
    };
    return cmocka_run_group_tests_name("config_map", tests, NULL, NULL);
}
