#include "convert/deepspeed/zero_layout.h"

#include "common/checked.h"

static uint64_t add_or_max(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

uint64_t zero_place_group(struct zero_place *places, size_t count, const uint64_t *padding)
{
    uint64_t at = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        places[i].begin = at;
        end = add_or_max(at, places[i].numel);
        at = add_or_max(end, padding ? padding[i] : 0);
    }
    return end;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    const uint64_t rest = n % to;
    return rest ? add_or_max(n, to - rest) : n;
}

uint64_t zero_alignment_padding(uint64_t numel, size_t element_bytes)
{
    const uint64_t to = 16 / gcd_u64(16, element_bytes);
    return (to - numel % to) % to;
}

uint64_t zero_padded(uint64_t num_elements, uint64_t ranks)
{
    return round_up(num_elements, 2 * ranks);
}

uint64_t zero_rank_padding(uint64_t num_elements, uint64_t ranks, uint64_t rank)
{
    const uint64_t part = zero_padded(num_elements, ranks) / ranks, end = (rank + 1) * part;
    return end <= num_elements ? 0 : min_u64(part, end - num_elements);
}

uint64_t zero3_part(uint64_t numel, uint64_t ranks)
{
    return numel / ranks + (numel % ranks != 0);
}

size_t zero3_sub_groups(const uint64_t *numel, size_t count, uint64_t ranks,
                        uint64_t sub_group_size, size_t *sub_group)
{
    size_t number = 0;
    uint64_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        sub_group[i] = number;
        filled = add_or_max(filled, zero3_part(numel[i], ranks));
        if (filled < sub_group_size) continue;
        number++;
        filled = 0;
    }
    return number + (filled != 0);
}
