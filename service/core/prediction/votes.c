/* The best labels of queries: Eq. 4 and 7 of RAE-XMC after the softmax of Eq. 5, then the top k.
 *
 * `ranking.py` calls this; `tests/support/equations.py` holds the same equations in Python. Both do
 * the same steps in the same order: each label's votes are added key after key. Compiled with
 * -ffp-contract=off, no product is fused with a sum and rounded differently. So scores are equal to
 * the last bit.
 *
 * Shapes: n queries, b keys of one query, v votes of these keys, m keys of all queries.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = -1, OUT_OF_RANGE = -2 };
enum { MAX_TABLE_BITS = 31 };
enum { LINE = 64 / sizeof(int32_t) }; /* votes, or weights of votes, per cache line */

/* The bundle's rows of V = [Y; I]. A row below `instances` is a row of Y, a CSR matrix. A row from
 * there up to `instances + labels` votes for its own label. */
typedef struct {
    int64_t instances, labels, entries;
    const int64_t *indptr;  /* [instances + 1] */
    const int32_t *indices; /* [entries] */
    const float *weights;   /* [entries], or NULL if every vote weighs 1 */
} Values;

/* The keys of all queries that were learned since the bundle, and their votes, key after key. */
typedef struct {
    int64_t keys, entries;
    const int64_t *counts;      /* [keys] */
    const int32_t *indices;     /* [entries] */
    const float *weights;       /* [entries], or NULL if every vote weighs 1 */
    const uint8_t *is_instance; /* [keys] */
} Learned;

/* The keys of one query, and their weights in the softmax of their similarities. */
typedef struct {
    const int64_t *rows;   /* [b] */
    const double *softmax; /* [b] */
    int64_t b;
} Keys;

/* The labels that may be found: those in the bitmap or, if it is NULL, all but the deleted ones. */
typedef struct {
    const int32_t *deleted; /* [count], ascending */
    int64_t count;
    const uint8_t *only; /* [bits / 8] */
    int64_t bits;
} Findable;

/* The next learned key, and its first vote. */
typedef struct {
    int64_t key, entry;
} Next;

/* Candidates in the order of their first vote, found through a hash table with linear probing. */
typedef struct {
    int32_t *place_at_slot; /* [2 ** bits], -1 if a slot is free */
    int32_t *labels;        /* [v] */
    double *scores;         /* [v] */
    int64_t count;
    int bits;
} Candidates;

static void add_vote(Candidates *candidates, int32_t label, double weight)
{
    uint32_t mask = (uint32_t)((1ull << candidates->bits) - 1);
    uint32_t slot = ((uint32_t)label * 2654435769u) >> (32 - candidates->bits);
    int32_t place;

    while ((place = candidates->place_at_slot[slot]) >= 0 && candidates->labels[place] != label)
        slot = (slot + 1) & mask;
    if (place < 0) {
        place = (int32_t)candidates->count++;
        candidates->place_at_slot[slot] = place;
        candidates->labels[place] = label;
        candidates->scores[place] = 0.0;
    }
    candidates->scores[place] += weight;
}

/* Return the number of a key's votes, or OUT_OF_RANGE. Writes a label's vote for itself to `own`.
 * `weights` becomes NULL if each vote weighs 1. */
static int64_t votes_of(const Values *values, const Learned *learned, int64_t row, Next *next,
                        int32_t *own, const int32_t **votes, const float **weights)
{
    int64_t start, count;

    *weights = NULL;
    if (row < 0)
        return OUT_OF_RANGE;
    if (row < values->instances) {
        start = values->indptr[row];
        count = values->indptr[row + 1] - start;
        *votes = values->indices + start;
        *weights = values->weights == NULL ? NULL : values->weights + start;
        return start < 0 || count < 0 || count > values->entries - start ? OUT_OF_RANGE : count;
    }
    if (row < values->instances + values->labels) {
        *own = (int32_t)(row - values->instances);
        *votes = own;
        return 1;
    }
    if (next->key >= learned->keys)
        return OUT_OF_RANGE;
    count = learned->counts[next->key++];
    if (count < 0 || count > learned->entries - next->entry)
        return OUT_OF_RANGE;
    *votes = learned->indices + next->entry;
    *weights = learned->weights == NULL ? NULL : learned->weights + next->entry;
    next->entry += count;
    return count;
}

/* The matrix is far larger than the cache: fetch all that will be read, in parallel. */
static void prefetch(const void *first, int64_t count)
{
    for (int64_t vote = 0; vote < count; vote += LINE)
        __builtin_prefetch((const int32_t *)first + vote);
}

/* Return the number v of a query's votes, or OUT_OF_RANGE. Brings the votes into the cache. */
static int64_t count_votes(const Values *values, const Learned *learned, Next next,
                           const Keys *keys)
{
    int64_t total = 0;
    const int32_t *votes;
    const float *weights;
    int32_t own;

    for (int64_t key = 0; key < keys->b; key++) {
        int64_t count = votes_of(values, learned, keys->rows[key], &next, &own, &votes, &weights);
        if (count < 0)
            return OUT_OF_RANGE;
        prefetch(votes, count);
        if (weights != NULL)
            prefetch(weights, count);
        total += count;
    }
    return total;
}

/* Weigh each key by its block of V (Eq. 4) and add its votes (Eq. 7); writes `weights` [b]. */
static void sum_votes(Candidates *candidates, const Values *values, const Learned *learned,
                      Next *next, const Keys *keys, double memorization, double *weights)
{
    const int32_t *votes;
    const float *of_votes;
    int32_t own;

    for (int64_t key = 0; key < keys->b; key++) {
        int64_t row = keys->rows[key], at = next->key;
        int64_t count = votes_of(values, learned, row, next, &own, &votes, &of_votes);
        int instance = row < values->instances || (next->key > at && learned->is_instance[at]);

        weights[key] = (instance ? memorization : 1.0 - memorization) * keys->softmax[key];
        for (int64_t vote = 0; vote < count; vote++)
            add_vote(candidates, votes[vote],
                     of_votes == NULL ? weights[key] : weights[key] * of_votes[vote]);
    }
}

static int is_deleted(int32_t label, const int32_t *deleted, int64_t count)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (deleted[middle] < label)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && deleted[low] == label;
}

/* Return whether a label is in a bitmap of `bits` bits. */
static int is_set(const uint8_t *bitmap, int64_t bits, int32_t label)
{
    return label < bits && bitmap[label >> 3] >> (label & 7) & 1;
}

/* Remove the candidates that are not to be found and, if votes may weigh less than 0, those whose
 * sum is below 0; the others keep their order. */
static void drop_others(Candidates *candidates, const Findable *among, int weighted)
{
    int64_t kept = 0;

    if (among->count == 0 && among->only == NULL && !weighted)
        return;
    for (int64_t place = 0; place < candidates->count; place++) {
        int32_t label = candidates->labels[place];
        if (among->only == NULL ? is_deleted(label, among->deleted, among->count)
                                : !is_set(among->only, among->bits, label))
            continue;
        if (candidates->scores[place] < 0.0)
            continue;
        candidates->labels[kept] = candidates->labels[place];
        candidates->scores[kept++] = candidates->scores[place];
    }
    candidates->count = kept;
}

/* Replace the smallest score of a heap [size] by `score`, and restore the heap. */
static void replace_smallest(double *heap, int64_t size, double score)
{
    int64_t parent = 0, child;

    while ((child = 2 * parent + 1) < size) {
        if (child + 1 < size && heap[child + 1] < heap[child])
            child++;
        if (score <= heap[child])
            break;
        heap[parent] = heap[child];
        parent = child;
    }
    heap[parent] = score;
}

/* The factors of labels; a label beyond the last one has the factor 1. */
typedef struct {
    const float *factors; /* [count] */
    int64_t count;
} Boosts;

/* Return the score of a candidate times the factor of its label, by which labels are ordered. */
static double boosted(const Candidates *candidates, const Boosts *boosts, int64_t place)
{
    int32_t label = candidates->labels[place];
    double score = candidates->scores[place];

    return label < boosts->count ? score * boosts->factors[label] : score;
}

/* Return the top_k-th largest of more than top_k boosted scores; `heap` has room for top_k
 * numbers. */
static double smallest_kept(const Candidates *candidates, const Boosts *boosts, int64_t top_k,
                            double *heap)
{
    for (int64_t place = 0; place < top_k; place++)
        heap[place] = -1.0; /* below every score that is kept */
    for (int64_t place = 0; place < candidates->count; place++) {
        double score = boosted(candidates, boosts, place);
        if (score > heap[0])
            replace_smallest(heap, top_k, score);
    }
    return heap[0];
}

/* Move the labels with the top_k highest boosted scores to the front, and all that tie with the
 * last one. Return how many labels these are. `heap` has room for top_k numbers. */
static int64_t keep_best(Candidates *candidates, const Boosts *boosts, int64_t top_k, double *heap)
{
    double threshold = -1.0;
    int64_t kept = 0;

    if (candidates->count > top_k)
        threshold = smallest_kept(candidates, boosts, top_k, heap);
    for (int64_t place = 0; place < candidates->count; place++) {
        if (boosted(candidates, boosts, place) < threshold)
            continue;
        candidates->labels[kept] = candidates->labels[place];
        candidates->scores[kept++] = candidates->scores[place];
    }
    return kept;
}

/* Rank the labels of one query. Writes the weights [b] of its keys, and at most `room` labels and
 * scores. Returns the number of these labels, OUT_OF_MEMORY or OUT_OF_RANGE. */
static int64_t best_of_query(const Values *values, const Learned *learned, Next *next,
                             const Keys *keys, double memorization, const Findable *among,
                             const Boosts *boosts, int64_t top_k, int64_t room, int32_t *labels,
                             double *scores, double *weights)
{
    Candidates candidates = {.count = 0, .bits = 4};
    int weighted = values->weights != NULL || learned->weights != NULL;
    int64_t kept, v = count_votes(values, learned, *next, keys);
    size_t slots;
    double *memory;

    if (v < 0)
        return OUT_OF_RANGE;
    while ((1ll << candidates.bits) < 2 * v && candidates.bits < MAX_TABLE_BITS)
        candidates.bits++;
    slots = (size_t)1 << candidates.bits;
    if ((size_t)v > slots / 2)
        return OUT_OF_MEMORY;
    memory = malloc((size_t)(v + top_k) * sizeof(double) + (slots + (size_t)v) * sizeof(int32_t));
    if (memory == NULL)
        return OUT_OF_MEMORY;
    candidates.scores = memory;
    candidates.place_at_slot = (int32_t *)(memory + v + top_k);
    candidates.labels = candidates.place_at_slot + slots;
    memset(candidates.place_at_slot, 0xFF, slots * sizeof(int32_t));

    sum_votes(&candidates, values, learned, next, keys, memorization, weights);
    drop_others(&candidates, among, weighted);
    kept = keep_best(&candidates, boosts, top_k, memory + v);
    for (int64_t place = 0; place < kept && place < room; place++) {
        labels[place] = candidates.labels[place];
        scores[place] = candidates.scores[place];
    }
    free(memory);
    return kept;
}

/* See `Ranker.best` in ranking.py. `rows` and `softmax` [m] are the keys query after query, `b` [n]
 * of each. No deleted label is in `only`. Writes the weights [m] of the keys, and for each query the
 * number of its labels [n] and at most `room` of them with scores, [n, room]. Returns 0,
 * OUT_OF_MEMORY, or OUT_OF_RANGE if a row or its votes are outside the matrix. */
int64_t best_labels(const Values *values, const int64_t *rows, const double *softmax,
                    const int64_t *b, int64_t n, double memorization,
                    const int64_t *learned_counts, const uint8_t *learned_is_instance,
                    int64_t learned_keys, const int32_t *learned_indices,
                    const float *learned_weights, int64_t learned_entries, const int32_t *deleted,
                    int64_t deleted_count, const uint8_t *only, int64_t only_bits,
                    const float *factors, int64_t factor_count, int64_t top_k, int64_t room,
                    int64_t *counts, int32_t *labels, double *scores, double *weights)
{
    Learned learned = {learned_keys,    learned_entries, learned_counts,
                       learned_indices, learned_weights, learned_is_instance};
    Findable among = {deleted, deleted_count, only, only_bits};
    Boosts boosts = {factors, factor_count};
    Next next = {0, 0};

    for (int64_t query = 0; query < n; query++) {
        Keys keys = {rows, softmax, b[query]};

        counts[query] = best_of_query(values, &learned, &next, &keys, memorization, &among, &boosts,
                                      top_k, room, labels, scores, weights);
        if (counts[query] < 0)
            return counts[query];
        rows += keys.b, softmax += keys.b, weights += keys.b;
        labels += room, scores += room;
    }
    return 0;
}
