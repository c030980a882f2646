/* plan_fuzz.c - the bytes choose tensors, how files hold them and where they go, and then what is
 * wrong with that. A plan is refused by a message, or what it writes is what its pieces say when
 * they are read one element at a time. What is planned may be larger than any memory; then it is
 * not carried out. */
#include "ckpt/digest.h"
#include "ckpt/testing_output.h"
#include "common/count.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BYTES = 1 << 16 /* of a file that is written */ };

__extension__ typedef unsigned __int128 u128;

static struct source source;
static struct output output;
static uint64_t seed; /* of what the elements are; the bytes choose all else */

static uint64_t choose(uint64_t bound)
{
    return test_choose(bound);
}

/* ---- large tensors, of which nothing is stored ---- */

static void cut_large(struct tensor *t, struct box x, unsigned cuts)
{
    unsigned d = t->num_dims ? (unsigned)choose(t->num_dims) : 0;
    if (t->num_dims && cuts && x.extent[d] > 1) {
        struct box rest = x;
        x.extent[d] = 1 + choose(x.extent[d] - 1);
        rest.start[d] += x.extent[d];
        rest.extent[d] -= x.extent[d];
        cut_large(t, x, cuts / 2);
        cut_large(t, rest, cuts - 1 - cuts / 2);
        return;
    }
    struct piece piece = {.origin = ORIGIN_ZERO, .dtype = t->dtype};
    struct pair pair;
    if (!pair_of_box(&pair, x.num_dims, x.shape, x.start, x.extent, 0, NULL)) abort();
    tensor_add_piece(&source.arena, t, &piece, &pair);
}

static void add_large(void)
{
    char name[32];
    uint64_t shape[SOURCE_DIMS], left = MAX_ELEMENTS;
    unsigned num_dims = 1 + (unsigned)choose(SOURCE_DIMS);
    struct tensor *t;
    struct error err;
    for (unsigned d = 0; d < num_dims; d++) {
        shape[d] = (UINT64_C(1) << choose(40)) + choose(4) - 1;
        if (shape[d] > left) shape[d] = left;
        left /= shape[d] ? shape[d] : 1;
    }
    snprintf(name, sizeof name, "tensor.%zu", source.catalog.num_tensors);
    assert_ok(catalog_add(&source.catalog, name, random_dtype(&seed), num_dims, shape, &t, &err));
    cut_large(t, box_of_tensor(t), (unsigned)choose(8));
}

/* ---- mistakes ---- */

static void change(uint64_t *n)
{
    switch (choose(7)) {
    case 0:
        *n += 1;
        break;
    case 1:
        *n -= 1;
        break;
    case 2:
        *n += choose(64);
        break;
    case 3:
        *n *= 1 + choose(4);
        break;
    case 4:
        *n = choose(64);
        break;
    case 5:
        *n = UINT64_C(1) << choose(64);
        break;
    default:
        *n = UINT64_MAX - choose(4);
    }
}

static void change_pair(struct pair *p)
{
    struct axis *x = p->num_axes ? &p->axes[choose(p->num_axes)] : NULL;
    uint64_t *numbers[] = {&p->a_offset, &p->b_offset, x ? &x->extent : NULL,
                           x ? &x->a_stride : NULL, x ? &x->b_stride : NULL};
    uint64_t which = choose(7);
    if (which == 5 && p->num_axes < MAX_AXES)
        p->axes[p->num_axes++] = (struct axis){choose(4), choose(64), choose(64)};
    else if (which == 6)
        pair_swap(p);
    else if (numbers[which % 5])
        change(numbers[which % 5]);
}

/* Whoever adds a piece has nested it, and the bytes that it names were in the file when that was
 * opened. */
static void change_source_piece(struct piece *piece)
{
    struct pair changed = pair_unpack(&piece->pair);
    if (choose(8) == 0) {
        piece->offset_bytes += choose(300); /* the file has become shorter */
    } else if (choose(8) == 0) {
        piece->dtype = (enum dtype)choose(NUM_DTYPES);
    } else if (choose(8) == 0) {
        piece->origin = choose(2) ? ORIGIN_ZERO : ORIGIN_HOLE;
    } else {
        change_pair(&changed);
        for (unsigned k = 0; k < changed.num_axes; k++)
            changed.axes[k].b_stride = changed.axes[k].b_stride % 64;
        changed.b_offset %= 1024;
        if (pair_nest(&changed)) piece->pair = pair_pack(&source.arena, &changed);
    }
}

static void spoil_source(void)
{
    struct tensor *t = &source.catalog.tensors[choose(source.catalog.num_tensors)];
    if (!t->num_pieces) return;
    struct piece *piece = &t->pieces[choose(t->num_pieces)], copy = *piece;
    const struct pair pair = pair_unpack(&copy.pair);
    /* one run of numbers; an array, whose bounds nobody checks */
    bool fixed = copy.origin == ORIGIN_RANDOM || copy.origin == ORIGIN_RANDOM_ONE ||
                 copy.origin == ORIGIN_RANDOM_SQUARE || copy.origin == ORIGIN_MEMORY;
    switch (choose(fixed ? 2 : 4)) {
    case 0:
        *piece = t->pieces[--t->num_pieces];
        break;
    case 1:
        tensor_add_piece(&source.arena, t, &copy, &pair);
        break;
    default:
        change_source_piece(piece);
    }
}

static void spoil_target_piece(void)
{
    struct plan *p = &output.plan;
    if (!p->num_copies) return;
    struct plan_copy *c = &p->copies[choose(p->num_copies)];
    if (!c->num_pieces) return;
    struct target_piece *piece = &c->pieces[choose(c->num_pieces)];
    struct pair pair = pair_unpack(&piece->pair);
    switch (choose(5)) {
    case 0:
        if (c->num_pieces > 1) *piece = c->pieces[--c->num_pieces];
        break;
    case 1:
        plan_add_piece(p, c->source, piece->segment, &pair);
        break;
    case 2:
        piece->segment = (uint32_t)choose(p->num_segments);
        break;
    default:
        change_pair(&pair);
        piece->pair = pair_pack(&p->arena, &pair);
    }
}

static void spoil_segment(void)
{
    struct plan *p = &output.plan;
    if (!p->num_segments) return;
    struct segment *s = &p->segments[choose(p->num_segments)];
    switch (choose(5)) {
    case 0:
        change(&s->offset_bytes);
        break;
    case 1:
        change(&s->numel);
        break;
    case 2:
        s->dtype = (enum dtype)choose(NUM_DTYPES);
        break;
    case 3:
        s->wants_crc = !s->wants_crc;
        break;
    default:
        change(&p->files[s->file].size_bytes);
    }
}

static void spoil(void)
{
    static void (*const ways[])(void) = {spoil_source, spoil_target_piece, spoil_segment};
    ways[choose(COUNT(ways))]();
}

/* ---- what a plan should do, element by element ---- */

/* Elements of a pair; more than `most` where there are more. */
static uint64_t count_at_most(const struct pair *p, uint64_t most)
{
    uint64_t n = 1;
    for (unsigned k = 0; k < p->num_axes; k++)
        if (!p->axes[k].extent) return 0;
    for (unsigned k = 0; k < p->num_axes && n <= most; k++)
        if (__builtin_mul_overflow(n, p->axes[k].extent, &n)) return UINT64_MAX;
    return n;
}

/* Whether a stored element lies in what its file has. */
static bool is_readable(const struct piece *piece, uint64_t b)
{
    uint64_t bytes = dtype_bytes(piece->dtype), end = piece->offset_bytes + (b + 1) * bytes;
    return piece->origin != ORIGIN_STORED || end <= source.files[piece->file].size;
}

static bool casts_exist(const struct tensor *t, enum dtype to)
{
    bool exist = dtype_bytes(t->dtype) && cast_exists(to, t->dtype);
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].origin == ORIGIN_STORED)
            exist &= cast_exists(t->dtype, t->pieces[i].dtype);
    return exist;
}

/* Reads all pieces of a tensor into its values. false where they do not tile it. */
static bool read_tensor(const struct tensor *t, bool *readable)
{
    bool *seen = calloc(t->numel + 1, sizeof *seen), whole = true;
    uint64_t num_seen = 0;
    for (size_t i = 0; i < t->num_pieces && whole; i++) {
        const struct piece *piece = &t->pieces[i];
        const struct pair pair = pair_unpack(&piece->pair);
        uint64_t count = count_at_most(&pair, t->numel);
        whole = count <= t->numel;
        for (uint64_t n = 0, a, b; n < count && whole; n++) {
            pair_element(&pair, n, &a, &b);
            whole = a < t->numel && !seen[a];
            if (!whole) break;
            seen[a] = true;
            num_seen++;
            *readable &= is_readable(piece, b);
            if (*readable) keep_value(&source, t, piece, a, b);
        }
    }
    free(seen);
    return whole && num_seen == t->numel;
}

/* Whether source and target of a carry have all that the plan takes of them. */
static bool copy_is_right(const struct plan_copy *c, bool *readable)
{
    const struct tensor *t = c->source;
    const struct plan *p = &output.plan;
    bool right = casts_exist(t, t->dtype) && read_tensor(t, readable);
    for (size_t i = 0; i < c->num_pieces && right; i++) {
        const struct pair pair = pair_unpack(&c->pieces[i].pair);
        const struct segment *s = &p->segments[c->pieces[i].segment];
        uint64_t count = count_at_most(&pair, t->numel);
        right = count <= t->numel && casts_exist(t, s->dtype);
        if (t->num_pieces && t->pieces[0].origin == ORIGIN_HOLE) right &= s->dtype == t->dtype;
        for (uint64_t n = 0, a, b; n < count && right; n++) {
            pair_element(&pair, n, &a, &b);
            right = a < t->numel && b < s->numel;
        }
    }
    return right;
}

/* Whether each element of a segment is written once. */
static bool segment_is_filled(uint32_t segment)
{
    const struct plan *p = &output.plan;
    const struct segment *s = &p->segments[segment];
    if (s->numel > MAX_BYTES) return false;
    bool *seen = calloc(s->numel + 1, sizeof *seen), right = true;
    uint64_t num_seen = 0;
    for (size_t i = 0; i < p->num_copies; i++)
        for (size_t k = 0; k < p->copies[i].num_pieces; k++) {
            const struct target_piece *piece = &p->copies[i].pieces[k];
            if (piece->segment != segment) continue;
            const struct pair pair = pair_unpack(&piece->pair);
            for (uint64_t n = 0, a, b; n < pair_count(&pair) && right; n++) {
                pair_element(&pair, n, &a, &b);
                right = !seen[b];
                seen[b] = true;
                num_seen++;
            }
        }
    free(seen);
    return right && num_seen == s->numel;
}

static u128 segment_size(const struct segment *s)
{
    return (u128)s->numel * dtype_bytes(s->dtype);
}

static bool segments_are_apart(const struct segment *s, const struct segment *other)
{
    u128 begin = s->offset_bytes, end = begin + segment_size(s);
    u128 from = other->offset_bytes, to = from + segment_size(other);
    return s == other || s->file != other->file || from >= end || begin >= to;
}

static bool segment_has_room(const struct segment *s)
{
    const struct plan *p = &output.plan;
    if (s->offset_bytes + segment_size(s) > p->files[s->file].size_bytes) return false;
    for (size_t i = 0; i < p->num_segments; i++)
        if (!segments_are_apart(s, &p->segments[i])) return false;
    return true;
}

static bool plan_is_right(bool *readable)
{
    const struct plan *p = &output.plan;
    for (size_t i = 0; i < p->num_copies; i++)
        if (!copy_is_right(&p->copies[i], readable)) return false;
    for (uint32_t i = 0; i < p->num_segments; i++)
        if (!segment_is_filled(i) || !segment_has_room(&p->segments[i])) return false;
    return true;
}

/* Refusals of plans that hold each element once. */
static bool is_known_refusal(const char *text)
{
    return strstr(text, "nested view") || strstr(text, "some of its pieces are holes");
}

/* ---- large ones, of which only a few elements are looked at ---- */

/* How often a nested pair has an element: digit by digit, in numbers that do not overflow. */
static unsigned times_in(const struct pair *p, uint64_t element)
{
    uint64_t rest = element - p->a_offset;
    if (element < p->a_offset) return 0;
    for (unsigned k = 0; k < p->num_axes; k++) {
        const struct axis *x = &p->axes[k];
        uint64_t digit = x->a_stride ? rest / x->a_stride : 0;
        if (digit >= x->extent) return 0;
        rest -= digit * x->a_stride;
    }
    return rest == 0;
}

static void check_element(const struct tensor *t, uint64_t element)
{
    unsigned times = 0;
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct pair pair = pair_unpack(&t->pieces[i].pair);
        times += times_in(&pair, element);
    }
    assert_int_equal(times, element < t->numel);
}

/* Checks a tensor that was found whole: the ends of its pieces are in one of
 * them, and the number of elements is right. */
static void check_large(const struct tensor *t)
{
    u128 sum = 0;
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct pair pair = pair_unpack(&t->pieces[i].pair), *p = &pair;
        u128 last = p->a_offset;
        uint64_t count = count_at_most(p, t->numel);
        if (!count) continue;
        for (unsigned k = 0; k < p->num_axes; k++)
            last += (u128)p->axes[k].a_stride * (p->axes[k].extent - 1);
        assert_true(count <= t->numel && last < t->numel);
        sum += count;
        check_element(t, p->a_offset);
        check_element(t, (uint64_t)last);
        check_element(t, (uint64_t)last + 1);
        if (p->a_offset) check_element(t, p->a_offset - 1);
    }
    assert_true(sum == t->numel);
}

/* ---- carrying it out ---- */

static void make_images_of_pieces(void)
{
    const struct plan *p = &output.plan;
    for (size_t i = 0; i < p->num_files; i++) {
        output.images[i] = malloc(p->files[i].size_bytes + 1);
        memset(output.images[i], output.finishes[i] ? PATTERN : 0, p->files[i].size_bytes);
    }
    for (size_t i = 0; i < p->num_copies; i++)
        for (size_t k = 0; k < p->copies[i].num_pieces; k++) {
            const struct target_piece *piece = &p->copies[i].pieces[k];
            const struct tensor *t = p->copies[i].source;
            const struct segment *s = &p->segments[piece->segment];
            const unsigned char *values = source.values[t - source.catalog.tensors];
            unsigned char *image = output.images[s->file] + s->offset_bytes;
            const struct pair pair = pair_unpack(&piece->pair);
            for (uint64_t n = 0, a, b; n < pair_count(&pair); n++) {
                pair_element(&pair, n, &a, &b);
                (void)cast_elements(image + b * dtype_bytes(s->dtype), s->dtype,
                                    values + a * dtype_bytes(t->dtype), t->dtype, 1);
            }
        }
}

static bool is_written(const struct plan_copy *c)
{
    for (size_t i = 0; i < c->num_pieces; i++) {
        const struct pair pair = pair_unpack(&c->pieces[i].pair);
        if (pair_count(&pair)) return c->source->pieces[0].origin != ORIGIN_HOLE;
    }
    return false;
}

/* The sums are those of the whole tensor, in the dtype of either side. */
static void check_digests(const struct plan_copy *c, const struct copy_result *r)
{
    const struct tensor *t = c->source;
    const enum dtype to = output.plan.segments[c->pieces[0].segment].dtype;
    const unsigned char *values = source.values[t - source.catalog.tensors];
    struct digest read = {{0}}, written = {{0}};
    void *cast = malloc(t->numel * dtype_bytes(to) + 1);
    (void)cast_elements(cast, to, values, t->dtype, t->numel);
    if (is_written(c)) {
        digest_add_elements(&read, t->dtype, values, t->numel, 0);
        digest_add_elements(&written, to, cast, t->numel, 0);
    }
    assert_memory_equal(&r->read, &read, sizeof read);
    assert_memory_equal(&r->written, &written, sizeof written);
    free(cast);
}

static void carry_out(bool readable)
{
    struct executor_options options = {.threads = 1,
                                       .digests = choose(2),
                                       .copies = output_results(&output),
                                       .progress = PROGRESS_NONE};
    struct executor_result result;
    struct error err = {0};
    for (size_t i = 0; i < output.plan.num_files; i++)
        if (output.plan.files[i].size_bytes > MAX_BYTES) return;
    make_images_of_pieces();
    source_write(&source);
    enum status st = executor_run(&output.plan, output.folder, &options, &result, &err);
    if (!readable) {
        if (st && !*err.text) abort();
        return;
    }
    assert_ok(st);
    for (size_t i = 0; i < output.plan.num_files; i++)
        check_file(&output, i);
    assert_int_equal(output.wrong_crcs, 0);
    for (size_t i = 0; i < output.plan.num_copies && options.digests; i++)
        check_digests(&output.plan.copies[i], &output.copies[i]);
}

static void check_plan(bool large)
{
    struct error err = {0};
    bool readable = true, right = !large && plan_is_right(&readable);
    enum status st = plan_finish(&output.plan, &err);
    if (st) {
        if (!*err.text) abort();
        if (right && !is_known_refusal(err.text)) fail_msg("refused: %s", err.text);
    } else if (large) {
        for (size_t i = 0; i < output.plan.num_copies; i++)
            check_large(output.plan.copies[i].source);
    } else {
        assert_true(right);
        carry_out(readable);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    test_choices = data;
    test_choices_end = data + size;
    seed = 1;
    source_init(&source, &seed);
    source.no_halves = true; /* mistakes in pieces would be those of two tensors */
    bool large = choose(4) == 3;
    for (uint64_t n = 1 + choose(3); n > 0; n--)
        if (large)
            add_large();
        else
            (void)source_add_random(&source, 1 + choose(128));
    const struct tensor *zeros = source_add_zeros(&source, 20);
    output_init(&output, &source, choose(8) ? 1 : 2); /* a second one costs threads */
    for (size_t i = 0; i < source.catalog.num_tensors; i++)
        add_target(&output, &source.catalog.tensors[i]);
    if (!large && choose(4) == 0) add_flat(&output, zeros);
    place_segments(&output);
    for (uint64_t n = choose(4); n > 0; n--)
        spoil();
    check_plan(large);
    output_release(&output);
    source_release(&source);
    return 0;
}

/* A failed check of cmocka's is to end the process, so that libFuzzer keeps the bytes. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return setenv("CMOCKA_TEST_ABORT", "1", 1);
}
