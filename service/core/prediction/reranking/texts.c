/* The overlap of a query's text with those of its candidates.
 *
 * `text_overlap.py` calls this; `tests/support/equations.py` does the same in Python. Texts are UTF-8
 * in lower case, with one space between words. Weights are added in the order of the words, so sums
 * are equal to the last bit.
 *
 * Shapes: k labels, W words with known rarity.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = -1 };
enum { VALUES = 9 }; /* values written for each label, see `compare_texts` */

typedef struct {
    const uint8_t *bytes;
    int64_t size;
} Text;

/* The rarity of words by their hash; `unknown` is the rarity of all other words. */
typedef struct {
    const uint64_t *hashes; /* [W], ascending */
    const double *rarity;   /* [W] */
    int64_t count;
    double unknown;
} Words;

/* A hash table with linear probing. Slots of an earlier stamp count as free, so one table serves all
 * labels without being cleared. */
typedef struct {
    uint64_t *keys;
    int64_t *stamps;
    uint64_t mask;
} Set;

static uint64_t slot_of(const Set *set, uint64_t key, int64_t stamp)
{
    uint64_t slot = ((key * 11400714819323198485ull) >> 20) & set->mask;

    while (set->stamps[slot] == stamp && set->keys[slot] != key)
        slot = (slot + 1) & set->mask;
    return slot;
}

static int contains(const Set *set, uint64_t key, int64_t stamp)
{
    return set->stamps[slot_of(set, key, stamp)] == stamp;
}

/* Add a key, and return whether it is new. */
static int add(Set *set, uint64_t key, int64_t stamp)
{
    uint64_t slot = slot_of(set, key, stamp);

    if (set->stamps[slot] == stamp)
        return 0;
    set->keys[slot] = key;
    set->stamps[slot] = stamp;
    return 1;
}

/* Reserve room for all keys that a text of `size` bytes can have; return 0 if memory is full. */
static int open_set(Set *set, int64_t size)
{
    uint64_t slots = 16;

    while (slots < 2 * ((uint64_t)size + 2))
        slots *= 2;
    set->mask = slots - 1;
    set->keys = malloc(slots * sizeof(uint64_t));
    set->stamps = calloc(slots, sizeof(int64_t)); /* the first stamp is 1, so 0 is free */
    return set->keys != NULL && set->stamps != NULL;
}

static void close_set(Set *set)
{
    free(set->keys);
    free(set->stamps);
}

/* Return the character at `*place`, and move `*place` behind it. */
static uint32_t next_character(const Text *text, int64_t *place)
{
    uint8_t first = text->bytes[(*place)++];
    int further = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    uint32_t character = further == 0 ? first : first & (0x3F >> further);

    for (; further > 0 && *place < text->size; further--)
        character = (character << 6) | (text->bytes[(*place)++] & 0x3F);
    return character;
}

/* Add the trigrams of a text's words, with a space before and behind each word. Return the count of
 * different trigrams, and in `*common` the count of those that `other` has. */
static int64_t add_trigrams(Set *set, const Text *text, int64_t stamp, const Set *other,
                            int64_t *common)
{
    uint64_t before = ' ', last = ' '; /* the two characters before the next one */
    int64_t count = 0, place = 0;

    while (last != ' ' || place < text->size) {
        uint64_t next = place < text->size ? next_character(text, &place) : ' ';
        uint64_t key = (before << 42) | (last << 21) | next;

        if (last != ' ' && add(set, key, stamp)) {
            count++;
            if (other != NULL && contains(other, key, 1))
                ++*common;
        }
        before = next == ' ' ? ' ' : last;
        last = next;
    }
    return count;
}

static int in_word(uint8_t byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_' || byte >= 0x80;
}

static double rarity_of(const Words *words, uint64_t hash)
{
    int64_t low = 0, high = words->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (words->hashes[middle] < hash)
            low = middle + 1;
        else
            high = middle;
    }
    return low < words->count && words->hashes[low] == hash ? words->rarity[low] : words->unknown;
}

/* Add the hashes (FNV-1a) of a text's words. Return the total rarity of the different words, and in
 * `*common` the total rarity of those that `other` has. */
static double add_words(Set *set, const Text *text, int64_t stamp, const Words *words,
                        const Set *other, double *common)
{
    double total = 0.0;
    int64_t place = 0;

    while (place < text->size) {
        uint64_t hash = 14695981039346656037ull;
        double rarity;

        if (!in_word(text->bytes[place])) {
            place++;
            continue;
        }
        for (; place < text->size && in_word(text->bytes[place]); place++)
            hash = (hash ^ text->bytes[place]) * 1099511628211ull;
        if (!add(set, hash, stamp))
            continue;
        rarity = rarity_of(words, hash);
        total += rarity;
        if (other != NULL && contains(other, hash, 1))
            *common += rarity;
    }
    return total;
}

static int is_mark(uint8_t byte)
{
    return byte != 0 && strchr(".,:;()[]\"'", byte) != NULL;
}

/* Return the text before the first space, without punctuation marks at its ends. */
static Text first_word(const Text *text)
{
    int64_t start = 0, stop = 0;

    while (stop < text->size && text->bytes[stop] != ' ')
        stop++;
    while (start < stop && is_mark(text->bytes[start]))
        start++;
    while (stop > start && is_mark(text->bytes[stop - 1]))
        stop--;
    return (Text){text->bytes + start, stop - start};
}

static int64_t characters_of(const Text *text)
{
    int64_t count = 0, place = 0;

    for (; place < text->size; count++)
        next_character(text, &place);
    return count;
}

/* Return the number of characters in the common beginning of both texts. */
static int64_t common_beginning(const Text *one, const Text *other)
{
    int64_t count = 0, place = 0, place_of_other = 0;

    while (place < one->size && place_of_other < other->size &&
           next_character(one, &place) == next_character(other, &place_of_other))
        count++;
    return count;
}

/* Writes for each label [k, VALUES]: the counts of common trigrams, of the query's, of the label's;
 * the summed rarities of common words, of the query's, of the label's; the lengths in characters of
 * the first words' common beginning, of the query's first word, of the label's. The labels' texts
 * lie one after the other and end at `ends` [k], ascending. Returns 0, or OUT_OF_MEMORY. */
int64_t compare_texts(const uint8_t *query, int64_t size, const uint8_t *labels,
                      const int64_t *ends, int64_t k, const uint64_t *hashes, const double *rarity,
                      int64_t count, double unknown, double *values)
{
    Words words = {hashes, rarity, count, unknown};
    Text ours = {query, size}, our_first = first_word(&ours);
    Set our_trigrams = {0}, our_words = {0}, trigrams = {0}, their_words = {0};
    int64_t longest = 0, status = OUT_OF_MEMORY;

    for (int64_t label = 0; label < k; label++) {
        int64_t bytes = ends[label] - (label == 0 ? 0 : ends[label - 1]);

        longest = bytes > longest ? bytes : longest;
    }
    if (open_set(&our_trigrams, size) && open_set(&our_words, size) &&
        open_set(&trigrams, longest) && open_set(&their_words, longest)) {
        double of_trigrams = (double)add_trigrams(&our_trigrams, &ours, 1, NULL, NULL);
        double of_words = add_words(&our_words, &ours, 1, &words, NULL, NULL);
        double of_first = (double)characters_of(&our_first);

        for (int64_t label = 0; label < k; label++, values += VALUES) {
            int64_t start = label == 0 ? 0 : ends[label - 1], common = 0;
            Text theirs = {labels + start, ends[label] - start}, first = first_word(&theirs);

            values[1] = of_trigrams;
            values[2] = (double)add_trigrams(&trigrams, &theirs, label + 1, &our_trigrams, &common);
            values[0] = (double)common;
            values[3] = 0.0;
            values[4] = of_words;
            values[5] = add_words(&their_words, &theirs, label + 1, &words, &our_words, values + 3);
            values[6] = (double)common_beginning(&our_first, &first);
            values[7] = of_first;
            values[8] = (double)characters_of(&first);
        }
        status = 0;
    }
    close_set(&our_trigrams);
    close_set(&our_words);
    close_set(&trigrams);
    close_set(&their_words);
    return status;
}
