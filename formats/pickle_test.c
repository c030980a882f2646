#include "formats/pickle.h"

#include "common/count.h"
#include "tests/testing.h"

static struct arena a;
static struct error err;
static struct strbuf text, stream;

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    strbuf_release(&text);
    strbuf_release(&stream);
    return 0;
}

static const char *printed(const struct value *v)
{
    strbuf_clear(&text);
    value_print(&text, v, 4000);
    return text.data;
}

static struct value *read_bytes(const void *data, size_t bytes)
{
    struct value *v;
    assert_ok(pickle_read_bytes(&a, data, bytes, &v, &err));
    return v;
}

/* A string literal, which may hold NULs, as a stream. */
#define READ(literal) read_bytes(literal, sizeof(literal) - 1)

static void assert_reads(const void *data, size_t bytes, const char *as)
{
    assert_string_equal(printed(read_bytes(data, bytes)), as);
}
#define assert_reads_as(literal, as) assert_reads(literal, sizeof(literal) - 1, as)
#define assert_refused(literal, part)                                                              \
    do {                                                                                           \
        struct value *refused_;                                                                    \
        assert_fails(pickle_read_bytes(&a, literal, sizeof(literal) - 1, &refused_, &err),         \
                     ERR_CORRUPT, part);                                                           \
    } while (0)

/* ---- reading ---- */

static void numbers_of_all_protocols_are_read(void **state)
{
    (void)state;
    assert_reads_as("\x80\5K\xFF.", "255");
    assert_reads_as("M\x01\xFF.", "65281");
    assert_reads_as("J\xFE\xFF\xFF\xFF.", "-2");
    assert_reads_as("\x8A\x00.", "0");
    assert_reads_as("\x8A\x01\x80.", "-128");
    assert_reads_as("\x8A\x05\x00\x00\x00\x80\x00.", "2147483648");
    assert_reads_as("\x8A\x08\x00\x00\x00\x00\x00\x00\x00\x80.", "-9223372036854775808");
    assert_reads_as("\x8A\x0A\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00.", "1"); /* not minimal */
    assert_reads_as("\x8A\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.", "0x8000000000000000");
    assert_reads_as("\x8B\x02\x00\x00\x00\x00\x01.", "256");
    assert_reads_as("G\x3F\xF8\x00\x00\x00\x00\x00\x00.", "1.5");
    assert_reads_as("I01\n.", "True");
    assert_reads_as("I1\n.", "1");
    assert_reads_as("L-18446744073709551616L\n.", "-0x10000000000000000");
    assert_reads_as("F1e-05\n.", "1e-05");
}

static void texts_and_bytes_of_all_protocols_are_read(void **state)
{
    (void)state;
    assert_reads_as("X\x02\x00\x00\x00\xC3\xA9.", "'\xC3\xA9'");
    assert_reads_as("\x8C\x01"
                    "a.",
                    "'a'");
    assert_reads_as("U\x01"
                    "a.",
                    "'a'");
    assert_reads_as("S'a\\n\\x41\\101\\\\'\n.", "'a\\x0aAA\\\\'");
    assert_reads_as("V\\u20ac\xE9\\U0001F600\n.", "'\xE2\x82\xAC\xC3\xA9\xF0\x9F\x98\x80'");
    assert_reads_as("C\x02\x00\xFF.", "b'\\x00\\xff'");
    assert_reads_as("\x96\x01\0\0\0\0\0\0\0z.", "b'z'");
    assert_reads_as("c_codecs\nencode\nX\x03\0\0\0a\xC3\xBFU\x06latin1\x86R.", "b'a\\xff'");
    assert_reads_as("c__builtin__\nbytes\n)R.", "b''");
}

static void containers_are_read_with_what_they_share(void **state)
{
    (void)state;
    assert_reads_as("](K\x01K\x02"
                    "eq\0.",
                    "[1, 2]");
    assert_reads_as("(lp0\nI1\naI2\na.", "[1, 2]");
    assert_reads_as("(dX\1\0\0\0aK\1s.", "{'a': 1}");
    assert_reads_as("\x8F(K\x01\x90.", "{1}");
    assert_reads_as("(K\1K\2\x91.", "{1, 2}");
    assert_reads_as("K\x01K\x02K\x03\x87.", "(1, 2, 3)");
    assert_reads_as("ccollections\nOrderedDict\n)R(X\1\0\0\0aK\1u.", "{'a': 1}");
    assert_reads_as("ccollections\nOrderedDict\n](](X\1\0\0\0aK\1ee\x85R.", "{'a': 1}");
    assert_reads_as("ctorch\nSize\nK\2K\3\x86\x85R.", "(2, 3)");
    struct value *v = READ("]q\0(]q\1h\1h\0e.");
    assert_ptr_equal(v->items[0], v->items[1]);
    assert_ptr_equal(v->items[2], v);
}

static void unknown_calls_and_instances_are_objects(void **state)
{
    (void)state;
    assert_reads_as("cos\nsystem\nX\2\0\0\0ls\x85R.", "os.system('ls')");
    assert_reads_as("(cos\nsystem\nX\2\0\0\0lso.", "os.system('ls')");
    assert_reads_as("cargparse\nNamespace\n)\x81}X\2\0\0\0tpK\2sb.",
                    "argparse.Namespace({'tp': 2})");
    assert_reads_as("ccopy_reg\n_reconstructor\ncm\nC\nc__builtin__\nobject\nN\x87R.", "m.C()");
    assert_reads_as("c__builtin__\ngetattr\ncm\nColor\nX\3\0\0\0RED\x86R.",
                    "builtins.getattr(m.Color, 'RED')");
    /* A call's result as a class, as ShardedTensor.ProcessGroupState. */
    assert_reads_as("c__builtin__\ngetattr\ncm\nC\nX\1\0\0\0P\x86R)\x81.",
                    "builtins.getattr(m.C, 'P')()");
    assert_reads_as("cos\nsystem\n}b.", "os.system({})");
}

#define STORAGE(class, numel)                                                                      \
    "(X\7\0\0\0storagectorch\n" class "\nX\1\0\0\0"                                                \
                                      "0X\3\0\0\0cpuK" numel "tQ"
#define HOOKS                                                                                      \
    "\x89"                                                                                         \
    "ccollections\nOrderedDict\n)R"
#define V2 "ctorch._utils\n_rebuild_tensor_v2\n"

static void tensors_are_read_with_strides_and_offset(void **state)
{
    (void)state;
    const struct value *v =
        READ(V2 "(" STORAGE("BFloat16Storage", "\x07") "K\1K\2K\3\x86K\1K\2\x86" HOOKS "tR.");
    assert_int_equal(v->kind, VALUE_TENSOR);
    assert_int_equal(v->tensor->dtype, DT_BF16);
    assert_int_equal(v->tensor->offset, 1);
    assert_int_equal(v->tensor->shape[1], 3);
    assert_int_equal(v->tensor->stride[1], 2);
    assert_string_equal(v->tensor->storage->key, "0");
    assert_int_equal(v->tensor->storage->numel, 7);
    assert_false(v->tensor->parameter);
}

static void views_that_leave_their_storage_are_refused(void **state)
{
    (void)state;
    assert_refused(V2 "(" STORAGE("FloatStorage", "\x06") "K\1K\2K\3\x86K\3K\1\x86" HOOKS "tR.",
                   "a tensor of shape [2, 3] with strides [3, 1] at element 1 reaches past the end "
                   "of storage 0, which has 6 elements");
    assert_refused(V2 "(" STORAGE("FloatStorage", "\x06") "K\0K\2\x85K\1K\1\x86" HOOKS "tR.",
                   "a tensor of 1 sizes and 2 strides");
    assert_refused(V2 "(" STORAGE("FloatStorage", "\x06") "K\0K\2\x85K\6\x85" HOOKS "tR.",
                   "with strides [6] at element 0 reaches past the end");
    READ(V2 "(" STORAGE("FloatStorage", "\x06") "K\0K\2\x85K\5\x85" HOOKS "tR.");
    READ(V2 "(" STORAGE("FloatStorage", "\x06") "K\7K\0K\2\x86K\5K\5\x86" HOOKS "tR."); /* empty */
}

static void storages_past_all_measure_are_refused(void **state)
{
    (void)state;
    assert_refused("(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                   "0X\3\0\0\0cpu\x8A\x08\0\0\0\0\0\0\0\x40tQ.",
                   "storage 0: 4611686018427387904 elements are too many");
    assert_refused("(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                   "0X\3\0\0\0cpu\x8A\x08\0\0\0\0\0\0\0\x20tQ.",
                   "storage 0: 2305843009213693952 elements are too many");
    assert_refused("(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                   "0X\3\0\0\0cpuJ\xFF\xFF\xFF\xFFtQ.",
                   "storage 0: its number of elements is -1");
}

static void a_parameter_is_its_tensor_and_a_typed_tensor_keeps_its_type(void **state)
{
    (void)state;
    const struct value *v = READ("ctorch._utils\n_rebuild_parameter\n(" V2 "(" STORAGE(
        "FloatStorage", "\x01") "K\0))" HOOKS "tR" HOOKS "tR.");
    assert_true(v->tensor->parameter);
    v = READ("ctorch._tensor\n_rebuild_from_type_v2\n(" V2
             "ctorch\nTensor\n(" STORAGE("FloatStorage", "\x01") "K\0))" HOOKS "t}tR.");
    assert_int_equal(v->kind, VALUE_TENSOR);
    v = READ("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n"
             "ctorch.distributed.tensor\nDTensor\nN\x85N}X\6\0\0\0_localK\7s\x86tR.");
    assert_true(value_is_instance(v, "torch.distributed.tensor", "DTensor"));
    assert_int_equal(value_get(v, "_local")->integer, 7);
}

static void storages_that_no_plain_tensor_comes_from_stay_objects(void **state)
{
    (void)state;
    const struct value *v =
        READ(V2 "(" STORAGE("QInt8Storage", "\x06") "K\0K\6\x85K\1\x85" HOOKS "tR.");
    assert_true(value_is_instance(v, "torch._utils", "_rebuild_tensor_v2"));
    v = READ(V2 "(" STORAGE("FloatStorage", "\x06") "K\0K\6\x85K\1\x85" HOOKS
                                                    "}X\3\0\0\0neg\x88stR.");
    assert_true(value_is_instance(v, "torch._utils", "_rebuild_tensor_v2"));
}

/* ---- refusals ---- */

static void broken_streams_are_refused_with_opcode_and_position(void **state)
{
    (void)state;
    assert_refused("", "byte 0: the stream ends without STOP");
    assert_refused("\x80\x06.", "opcode 0x80 at byte 0: protocol 6, the highest is 5");
    assert_refused("\x80\x02\xFF", "opcode 0xFF at byte 2: unknown opcode");
    assert_refused("K\1\x86.", "opcode 0x86 at byte 2: TUPLE2 needs 2 values, the stack has 1");
    assert_refused("K\1(\x85.", "TUPLE1 needs 1 values, the stack has 0"); /* not below a MARK */
    assert_refused("K\1t.", "TUPLE without a MARK");
    assert_refused("(e.", "APPENDS needs 1 values, the stack has 0");
    assert_refused("0.", "POP on an empty stack");
    assert_refused("K\1K\2.", "STOP with 1 more values");
    assert_refused("(K\1.", "STOP while a MARK is open");
    assert_refused("K\1(.", "STOP needs 1 values, the stack has 0");
    assert_refused("}(K\1u.", "a key without a value");
    assert_refused("}]K\1s.", "a list cannot be a key");
    assert_refused("K\1K\2a.", "cannot add items to an int");
    assert_refused("cm\nC\n)bK\1a.",
                   "cannot add items to a global"); /* corpus: items-of-a-global */
    assert_refused("NNb.", "cannot set a state of None");
    assert_refused("h\7.", "memo entry 7 was never set");
    assert_refused("Nr\xFF\xFF\xFF\xFF.", "memo index 4294967295 after 2 opcodes");
    assert_refused("Nq\0\x94.", "PUT and MEMOIZE in one stream");
    assert_refused("cm\nC", "its line has no end");
    assert_refused("K\1K\2\x93.", "module and name are an int and an int");
    assert_refused("cm\nC\nNR.", "the arguments are None, not a tuple");
    assert_refused("I1x\n.", "its line is not a number");
    assert_refused("Sabc\n.", "its text is not quoted");
    assert_refused("P0\n.", "persistent ids in text are not supported");
    assert_refused("\x82\1.", "EXT1 is not supported in a file");
}

static void claimed_lengths_are_held_against_what_is_left(void **state)
{
    (void)state;
    assert_refused("X\xFF\xFF\xFF\xFF.", "needs 4294967295 bytes, 1 are left");
    assert_refused("\x8D\0\0\0\0\0\0\0\x80.", "claims 9223372036854775808 bytes");
    assert_refused("\x8B\xFF\xFF\xFF\xFF.", "a negative length");
    assert_refused("\x95\0\0\0\0\0\0\0\x10N.", "a frame of 1152921504606846976 bytes, 2 are left");
    assert_refused("\x8C", "needs 1 bytes, 0 are left");
}

/* Three bytes of the stream would copy a text of 64 KiB each time. */
static void copies_of_what_is_memoised_once_are_bounded(void **state)
{
    (void)state;
    struct value *v;
    strbuf_add(&stream, "c_codecs\nencode\nq\0X\0\0\1\0", 23);
    strbuf_add_repeated(&stream, 'a', 1 << 16);
    strbuf_add_text(&stream, "U\6latin1\x86q\1");
    for (int i = 0; i < 1000; i++)
        strbuf_add(&stream, "h\0h\1R", 5);
    assert_fails(pickle_read_bytes(&a, stream.data, stream.length, &v, &err), ERR_CORRUPT,
                 "its values take");
    assert_true(a.total_bytes < 16 << 20);
}

static void a_million_levels_are_read_written_and_released(void **state)
{
    (void)state;
    struct strbuf again = {0};
    strbuf_add_char(&stream, ')');
    strbuf_add_repeated(&stream, '\x85', 1000000);
    strbuf_add_char(&stream, '.');
    struct value *v = read_bytes(stream.data, stream.length);
    assert_ok(pickle_write(&again, v, &err));
    assert_int_equal(again.length, stream.length + 2);
    assert_memory_equal(again.data + 2, stream.data, stream.length);
    strbuf_release(&again);
}

/* ---- through a window ---- */

static enum status read_stream(const struct bytes *b, uint64_t at, void *to, size_t count,
                               struct error *e)
{
    (void)b;
    if (at + count > stream.length) return fail(e, ERR_OURS, "read past the end");
    memcpy(to, stream.data + at, count);
    return OK;
}

/* The contents of `stream`, without telling the reader that they are in
 * memory. */
static struct bytes stream_bytes(void)
{
    static const struct bytes_kind kind = {.read = read_stream};
    return (struct bytes){.kind = &kind, .path = "stream", .size_bytes = stream.length};
}

/* Texts of many lengths, so that arguments lie across the ends of windows. */
static void a_stream_longer_than_the_window_is_read_piecewise(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), random = seed;
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL), *got;
    static char big[200000];
    memset(big, 'b', sizeof big - 1);
    for (int i = 0; i < 3000; i++) {
        char name[300];
        memset(name, 'a' + i % 26, sizeof name);
        name[test_below(&random, sizeof name)] = '\0';
        name[sizeof name - 1] = '\0';
        value_append(&a, list, i == 1500 ? value_text(&a, big) : value_text(&a, name));
    }
    strbuf_add_text(&stream, "before"); /* the pickle does not begin at 0 */
    assert_ok(pickle_write(&stream, list, &err));
    size_t end_of_pickle = stream.length;
    strbuf_add_text(&stream, "behind");
    struct bytes in = stream_bytes();
    uint64_t end;
    assert_ok(pickle_read(&a, &in, 6, NULL, &got, &end, &err));
    assert_int_equal(end, end_of_pickle);
    assert_int_equal(got->count, list->count);
    for (uint32_t i = 0; i < got->count; i++)
        if (strcmp(got->items[i]->text, list->items[i]->text) != 0)
            fail_msg("text %u differs; seed %lu", i, (unsigned long)seed);
}

static void a_failure_to_read_is_passed_on(void **state)
{
    (void)state;
    struct value *v;
    strbuf_add_text(&stream, "N");
    struct bytes in = stream_bytes();
    in.size_bytes = 100;
    assert_fails(pickle_read(&a, &in, 0, NULL, &v, NULL, &err), ERR_OURS, "read past the end");
}

/* ---- hooks ---- */

/* Class "C" becomes the number that is its attribute x; counted in *context. */
static void *number_of_c(void *context, const char *class_name, const struct value *v)
{
    static char natives[100000];
    int64_t x;
    if (strcmp(class_name, "C") != 0 || !value_as_int(value_get(v, "x"), &x)) return NULL;
    ++*(size_t *)context;
    return &natives[x];
}

static struct value *instance(struct value *state)
{
    return value_instance(&a, "m", "C", state);
}

static struct value *c_of(int64_t x, struct value *shared)
{
    struct value *state = value_dict(&a);
    value_dict_set(&a, state, "x", value_int(&a, x));
    value_dict_set(&a, state, "shared", shared);
    value_dict_set(&a, state, "text", value_text(&a, "some text that nobody keeps"));
    return instance(state);
}

static struct value *read_hooked(size_t *built, const char *skip)
{
    struct bytes in = stream_bytes();
    struct pickle_hooks hooks = {.context = built,
                                 .built = number_of_c,
                                 .collect_bytes = 1,
                                 .skip_attributes = &skip,
                                 .num_skip_attributes = skip != NULL};
    struct value *v;
    *built = 0;
    assert_ok(pickle_read(&a, &in, 0, &hooks, &v, NULL, &err));
    return v;
}

static enum status read_failing(const struct bytes *b, uint64_t at, void *to, size_t count,
                                struct error *e)
{
    int *calls_left = b->from.state;
    if ((*calls_left)-- == 0) return fail(e, ERR_IO, "the disk is gone");
    return read_stream(b, at, to, count, e);
}

/* Also where nothing is built of what is read. */
static void a_failure_in_any_pass_is_passed_on(void **state)
{
    (void)state;
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL), *v;
    value_append(&a, list, c_of(5, value_int(&a, 7)));
    assert_ok(pickle_write(&stream, list, &err));
    const char *skip = "shared";
    static const struct bytes_kind failing = {.read = read_failing};
    for (int call = 0;; call++) {
        size_t built = 0;
        int calls_left = call;
        struct bytes in = stream_bytes();
        in.kind = &failing;
        in.from.state = &calls_left;
        struct pickle_hooks hooks = {.context = &built,
                                     .built = number_of_c,
                                     .skip_attributes = &skip,
                                     .num_skip_attributes = 1};
        enum status st = pickle_read(&a, &in, 0, &hooks, &v, NULL, &err);
        if (!st) {
            assert_in_range(call, 3, 100); /* two surveys and the reading */
            return;
        }
        assert_int_equal(st, ERR_IO);
        assert_non_null(strstr(err.text, "the disk is gone"));
    }
}

/* Every instance refers to one tuple, which the pickle has in the first; the
 * end needs it too. */
static void instances_are_replaced_and_what_they_share_survives(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    size_t built;
    struct value *shared_items[] = {value_int(&a, 70000), value_text(&a, "kept")};
    struct value *shared = value_list(&a, VALUE_TUPLE, 2, shared_items);
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL), *twice = c_of(5, shared);
    value_append(&a, list, twice);
    for (int i = 0; i < COUNT; i++)
        value_append(&a, list, c_of(i, shared));
    value_append(&a, list, twice);
    value_append(&a, list, shared);
    assert_ok(pickle_write(&stream, list, &err));
    struct value *got = read_hooked(&built, NULL);
    assert_int_equal(built, COUNT + 1);
    assert_int_equal(got->count, COUNT + 3);
    const char *first = got->items[1]->native; /* of x = 0 */
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(got->items[i + 1]->kind, VALUE_NATIVE);
        assert_int_equal((const char *)got->items[i + 1]->native - first, i);
    }
    assert_ptr_equal(got->items[0], got->items[COUNT + 1]);
    assert_string_equal(printed(got->items[COUNT + 2]), "(70000, 'kept')");
}

static void memory_is_that_of_what_is_kept(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    size_t built;
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL);
    for (int i = 0; i < COUNT; i++)
        value_append(&a, list,
                     c_of(i, value_text(&a, "a text of a hundred bytes, ..............."
                                            "........................................."
                                            ".................")));
    assert_ok(pickle_write(&stream, list, &err));
    size_t before = a.total_bytes;
    struct value *got = read_hooked(&built, NULL);
    assert_int_equal(got->count, COUNT);
    assert_true(a.total_bytes - before < COUNT * 64 + (1 << 20));
}

static void attributes_are_passed_over(void **state)
{
    (void)state;
    size_t built;
    struct value *root = value_dict(&a), *plans = value_list(&a, VALUE_LIST, 0, NULL);
    struct value *shared = value_list(&a, VALUE_TUPLE, 1, (struct value *[]){value_int(&a, 77777)});
    for (int i = 0; i < 100; i++)
        value_append(&a, plans, c_of(i, shared));
    value_dict_set(&a, root, "shared", shared); /* referred to from what is passed over */
    value_dict_set(&a, root, "plans", plans);
    value_dict_set(&a, root, "c", c_of(7, shared));
    value_dict_set(&a, root, "shared again", shared);
    assert_ok(pickle_write(&stream, root, &err));
    struct value *got = read_hooked(&built, "plans");
    assert_int_equal(built, 1);
    assert_int_equal(value_get(got, "plans")->kind, VALUE_SKIPPED);
    assert_int_equal(value_get(got, "c")->kind, VALUE_NATIVE);
    assert_string_equal(printed(value_get(got, "shared")), "(77777,)");
    assert_ptr_equal(value_get(got, "shared"), value_get(got, "shared again"));
    assert_fails(pickle_write(&text, got, &err), ERR_UNSUPPORTED, "was skipped while reading");
}

static void a_text_that_is_no_key_skips_nothing_and_keys_behind_it_do(void **state)
{
    (void)state;
    size_t built;
    struct value *texts[] = {value_text(&a, "plans"), value_int(&a, 1), value_text(&a, "plans"),
                             value_int(&a, 2)};
    struct value *items[] = {value_list(&a, VALUE_LIST, 4, texts), value_dict(&a), value_dict(&a)};
    for (size_t i = 1; i < 3; i++) {
        value_dict_set(&a, items[i], "plans", value_list(&a, VALUE_LIST, 1, texts));
        value_dict_set(&a, items[i], "x", value_int(&a, 3));
    }
    struct value *root = value_list(&a, VALUE_LIST, 3, items);
    assert_ok(pickle_write(&stream, root, &err));
    assert_string_equal(printed(read_hooked(&built, "plans")),
                        "[['plans', 1, 'plans', 2], {'plans': <not kept>, 'x': 3}, "
                        "{'plans': <not kept>, 'x': 3}]");
}

static void what_is_passed_over_is_read_where_something_kept_refers_into_it(void **state)
{
    (void)state;
    size_t built;
    struct value *root = value_dict(&a), *inner = value_list(&a, VALUE_LIST, 0, NULL);
    value_append(&a, inner, value_int(&a, 5));
    struct value *plans = value_list(&a, VALUE_LIST, 1, &inner);
    value_dict_set(&a, root, "plans", plans);
    value_dict_set(&a, root, "kept", inner);
    value_dict_set(&a, root, "c", c_of(1, inner));
    assert_ok(pickle_write(&stream, root, &err));
    struct value *got = read_hooked(&built, "plans");
    assert_string_equal(printed(value_get(got, "kept")), "[5]");
    assert_ptr_equal(value_get(got, "plans")->items[0], value_get(got, "kept"));
}

/* ---- writing ---- */

static struct value *written_and_read(const struct value *v)
{
    strbuf_clear(&stream);
    assert_ok(pickle_write(&stream, v, &err));
    return read_bytes(stream.data, stream.length);
}

static void the_smallest_opcodes_are_written(void **state)
{
    (void)state;
    static const struct {
        int64_t v;
        const char *bytes;
        size_t length;
    } rows[] = {
        {0, "K\0", 2},
        {255, "K\xFF", 2},
        {256, "M\0\1", 3},
        {65536, "J\0\0\1\0", 5},
        {-1, "J\xFF\xFF\xFF\xFF", 5},
        {INT32_MAX, "J\xFF\xFF\xFF\x7F", 5},
        {(int64_t)1 << 31, "\x8A\5\0\0\0\x80\0", 7},
        {-((int64_t)1 << 31) - 1, "\x8A\5\xFF\xFF\xFF\x7F\xFF", 7},
        {((int64_t)1 << 39) - 1, "\x8A\5\xFF\xFF\xFF\xFF\x7F", 7},
        {(int64_t)1 << 39, "\x8A\6\0\0\0\0\x80\0", 8},
        {INT64_MIN, "\x8A\x08\0\0\0\0\0\0\0\x80", 10},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        strbuf_clear(&stream);
        pickle_put_int(&stream, rows[i].v);
        assert_int_equal(stream.length, rows[i].length);
        assert_memory_equal(stream.data, rows[i].bytes, rows[i].length);
    }
}

static void a_tensor_is_written_as_the_specification_has_it(void **state)
{
    (void)state;
    static const char expected[] =
        "\x80\2}X\1\0\0\0w" V2 "(" STORAGE("FloatStorage", "\x06") "K\0(K\2K\3t(K\3K\1t" HOOKS
                                                                   "tRs.";
    struct value *d = value_dict(&a);
    value_dict_set(&a, d, "w", value_tensor(&a, "0", DT_F32, 2, (uint64_t[]){2, 3}));
    assert_ok(pickle_write(&stream, d, &err));
    assert_int_equal(stream.length, sizeof expected - 1);
    assert_memory_equal(stream.data, expected, sizeof expected - 1);
}

static void what_was_read_is_written_and_reads_the_same(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
    } rows[] = {
#define ROW(literal) {literal, sizeof(literal) - 1}
        ROW("(NI01\nK\7J\xFE\xFF\xFF\xFFG\x3F\xF8\0\0\0\0\0\0t."),
        ROW("\x8A\x09\0\0\0\0\0\0\0\x80\0."),
        ROW("C\4a\0\x7F\xFF."),
        ROW("X\4\0\0\0a\0\xC3\xA9."),
        ROW("X\3\0\0\0\xED\xA0\x80."), /* a lone surrogate */
        ROW("\x8F(K\1K\2\x90."),
        ROW("cargparse\nNamespace\n)\x81}(X\1\0\0\0aK\1X\1\0\0\0bNub."),
        ROW("cos\nsystem\nX\2\0\0\0ls\x85R."),
        ROW("cm\nC\n)\x81(K\1K\2e(X\1\0\0\0kK\3u}X\1\0\0\0aK\1sb."),
        ROW("cos\nsystem\n}b."),
        ROW("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n"
            "cm\nDTensor\nN\x85N}X\1\0\0\0aK\1s\x86tR."),
        ROW("ctorch\nbfloat16\n."),
        ROW("ctorch._utils\n_rebuild_parameter\n(" V2
            "(" STORAGE("FloatStorage", "\x01") "K\0))" HOOKS "tR" HOOKS "tR."),
#undef ROW
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct value *v = read_bytes(rows[i].bytes, rows[i].length);
        char *before = arena_copy_text(&a, printed(v));
        assert_string_equal(printed(written_and_read(v)), before);
    }
}

static void batches_end_at_a_thousand_items(void **state)
{
    (void)state;
    for (int count = 998; count <= 1002; count++) {
        struct value *list = value_list(&a, VALUE_LIST, 0, NULL), *d = value_dict(&a);
        char name[16];
        for (int i = 0; i < count; i++) {
            snprintf(name, sizeof name, "%d", i);
            value_append(&a, list, value_int(&a, i));
            value_dict_set(&a, d, name, value_int(&a, i));
        }
        const struct value *got = written_and_read(list);
        assert_int_equal(got->count, count);
        assert_int_equal(got->items[count - 1]->integer, count - 1);
        got = written_and_read(d);
        assert_int_equal(got->count, count);
        assert_int_equal(value_get(got, name)->integer, count - 1);
    }
}

static void shared_values_and_cycles_are_written_once(void **state)
{
    (void)state;
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL), *d = value_dict(&a);
    struct value *o = instance(d), *t = value_tensor(&a, "0", DT_F32, 0, NULL);
    value_append(&a, list, list);
    value_append(&a, list, o);
    value_append(&a, list, o);
    value_append(&a, list, t);
    value_append(&a, list, t);
    value_dict_set(&a, d, "me", o);
    value_dict_set(&a, d, "list", list);
    const struct value *got = written_and_read(list);
    assert_ptr_equal(got->items[0], got);
    assert_ptr_equal(got->items[1], got->items[2]);
    assert_ptr_equal(value_get(got->items[1], "me"), got->items[1]);
    assert_ptr_equal(value_get(got->items[1], "list"), got);
    assert_ptr_equal(got->items[3], got->items[4]);
}

static void many_shared_values_take_long_memo_indexes(void **state)
{
    (void)state;
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL);
    for (int i = 0; i < 300; i++) {
        struct value *item = value_list(&a, VALUE_LIST, 0, NULL);
        value_append(&a, item, value_int(&a, i));
        value_append(&a, list, item);
    }
    for (uint32_t i = 0; i < 300; i++)
        value_append(&a, list, list->items[i]);
    const struct value *got = written_and_read(list);
    for (uint32_t i = 0; i < 300; i++) {
        assert_ptr_equal(got->items[i], got->items[300 + i]);
        assert_int_equal(got->items[i]->items[0]->integer, i);
    }
}

static void what_protocol_2_cannot_say_is_refused(void **state)
{
    (void)state;
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL);
    struct value *tuple = value_list(&a, VALUE_TUPLE, 1, &list);
    value_append(&a, list, tuple);
    assert_fails(pickle_write(&stream, tuple, &err), ERR_UNSUPPORTED,
                 "a tuple that contains itself");
    assert_fails(pickle_write(&stream, value_text(&a, "\xFF"), &err), ERR_UNSUPPORTED,
                 "a text that is not UTF-8");
    struct value *v = value_tensor(&a, "0", DT_F6_E2M3, 1, (uint64_t[]){4});
    assert_fails(pickle_write(&stream, v, &err), ERR_UNSUPPORTED, "torch has no F6_E2M3 tensor");
    v = value_tensor(&a, "0", DT_F4, 1, (uint64_t[]){3});
    assert_fails(pickle_write(&stream, v, &err), ERR_UNSUPPORTED,
                 "torch has no F4 tensor of that shape");
}

/* torch counts pairs, we count elements. */
static void four_bit_floats_are_pairs_in_torch(void **state)
{
    (void)state;
    const struct value *v = value_tensor(&a, "0", DT_F4, 2, (uint64_t[]){3, 8});
    const struct value_tensor *t = written_and_read(v)->tensor;
    assert_non_null(memmem(stream.data, stream.length, "(K\3K\4t(K\4K\1t", 12));
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 8);
    assert_int_equal(t->stride[0], 8);
    assert_int_equal(t->stride[1], 1);
    assert_int_equal(t->storage->numel, 12);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_of_all_protocols_are_read),
        TEST(texts_and_bytes_of_all_protocols_are_read),
        TEST(containers_are_read_with_what_they_share),
        TEST(unknown_calls_and_instances_are_objects),
        TEST(tensors_are_read_with_strides_and_offset),
        TEST(views_that_leave_their_storage_are_refused),
        TEST(storages_past_all_measure_are_refused),
        TEST(a_parameter_is_its_tensor_and_a_typed_tensor_keeps_its_type),
        TEST(storages_that_no_plain_tensor_comes_from_stay_objects),
        TEST(broken_streams_are_refused_with_opcode_and_position),
        TEST(claimed_lengths_are_held_against_what_is_left),
        TEST(copies_of_what_is_memoised_once_are_bounded),
        TEST(a_million_levels_are_read_written_and_released),
        TEST(a_stream_longer_than_the_window_is_read_piecewise),
        TEST(a_failure_to_read_is_passed_on),
        TEST(a_failure_in_any_pass_is_passed_on),
        TEST(instances_are_replaced_and_what_they_share_survives),
        TEST(memory_is_that_of_what_is_kept),
        TEST(attributes_are_passed_over),
        TEST(a_text_that_is_no_key_skips_nothing_and_keys_behind_it_do),
        TEST(what_is_passed_over_is_read_where_something_kept_refers_into_it),
        TEST(the_smallest_opcodes_are_written),
        TEST(a_tensor_is_written_as_the_specification_has_it),
        TEST(what_was_read_is_written_and_reads_the_same),
        TEST(batches_end_at_a_thousand_items),
        TEST(shared_values_and_cycles_are_written_once),
        TEST(many_shared_values_take_long_memo_indexes),
        TEST(what_protocol_2_cannot_say_is_refused),
        TEST(four_bit_floats_are_pairs_in_torch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
