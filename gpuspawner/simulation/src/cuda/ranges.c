/* Ordered sets of ranges: a treap keyed by a pair of numbers, and an arena on top of it. All operations
 * take O(log n) steps; priorities come from a small generator, so that no input order is a bad one. */
#include <stdlib.h>

#include "sim.h"

static int compare(uint64_t key, uint64_t key2, const struct node *node) {
    if (key != node->key) return key < node->key ? -1 : 1;
    return key2 < node->key2 ? -1 : key2 > node->key2;
}

static uint32_t priority(void) {
    static uint64_t state = 0x9e3779b97f4a7c15ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* Nodes with keys below (key, key2) to *low, the others to *high. */
static void split(struct node *root, uint64_t key, uint64_t key2, struct node **low, struct node **high) {
    while (root) {
        if (compare(key, key2, root) <= 0) {
            *high = root;
            high = &root->left;
            root = root->left;
        } else {
            *low = root;
            low = &root->right;
            root = root->right;
        }
    }
    *low = *high = NULL;
}

static struct node *merge(struct node *low, struct node *high) {
    struct node *root = NULL, **at = &root;
    while (low && high) {
        if (low->priority > high->priority) {
            *at = low;
            at = &low->right;
            low = low->right;
        } else {
            *at = high;
            at = &high->left;
            high = high->left;
        }
    }
    *at = low ? low : high;
    return root;
}

void node_insert(struct node **root, struct node *node) {
    node->priority = priority();
    while (*root && (*root)->priority >= node->priority)
        root = compare(node->key, node->key2, *root) < 0 ? &(*root)->left : &(*root)->right;
    split(*root, node->key, node->key2, &node->left, &node->right);
    *root = node;
}

struct node *node_remove(struct node **root, uint64_t key, uint64_t key2) {
    while (*root) {
        int order = compare(key, key2, *root);
        if (!order) {
            struct node *found = *root;
            *root = merge(found->left, found->right);
            return found;
        }
        root = order < 0 ? &(*root)->left : &(*root)->right;
    }
    return NULL;
}

struct node *node_at_most(struct node *root, uint64_t key, uint64_t key2) {
    struct node *best = NULL;
    while (root) {
        if (compare(key, key2, root) < 0) root = root->left;
        else best = root, root = root->right;
    }
    return best;
}

struct node *node_at_least(struct node *root, uint64_t key, uint64_t key2) {
    struct node *best = NULL;
    while (root) {
        if (compare(key, key2, root) > 0) root = root->right;
        else best = root, root = root->left;
    }
    return best;
}

struct node *node_first(struct node *root) {
    while (root && root->left) root = root->left;
    return root;
}

struct extent {
    struct node base, size;
};

#define OF_BASE(pointer) ((struct extent *)((char *)(pointer) - offsetof(struct extent, base)))
#define OF_SIZE(pointer) ((struct extent *)((char *)(pointer) - offsetof(struct extent, size)))

static void extent_put(struct arena *arena, struct extent *extent, uint64_t base, uint64_t size) {
    extent->base.key = extent->size.key2 = base;
    extent->base.key2 = 0;
    extent->size.key = size;
    node_insert(&arena->by_base, &extent->base);
    node_insert(&arena->by_size, &extent->size);
}

static void extent_pull(struct arena *arena, struct extent *extent) {
    node_remove(&arena->by_base, extent->base.key, 0);
    node_remove(&arena->by_size, extent->size.key, extent->size.key2);
}

bool arena_add(struct arena *arena, uint64_t base, uint64_t size) {
    struct extent *extent = malloc(sizeof *extent);
    if (!extent) return false;
    extent_put(arena, extent, base, size);
    return true;
}

uint64_t arena_take(struct arena *arena, uint64_t size, uint64_t align) {
    /* Enough for the worst case of alignment; the rest goes back. */
    uint64_t need = size + (align > SIM_ALLOC_GRANULE ? align - SIM_ALLOC_GRANULE : 0);
    struct node *node = need < size ? NULL : node_at_least(arena->by_size, need, 0);
    if (!node) return 0;
    struct extent *extent = OF_SIZE(node), *tail = NULL;
    uint64_t base = extent->base.key, whole = extent->size.key;
    uint64_t start = (base + align - 1) & ~(align - 1), end = start + size;
    bool head_left = start > base, tail_left = end < base + whole;
    if (head_left && tail_left && !(tail = malloc(sizeof *tail))) return 0;
    extent_pull(arena, extent);
    if (head_left) extent_put(arena, extent, base, start - base);
    if (tail_left) extent_put(arena, head_left ? tail : extent, end, base + whole - end);
    if (!head_left && !tail_left) free(extent);
    return start;
}

void arena_give(struct arena *arena, uint64_t base, uint64_t size) {
    struct node *before = node_at_most(arena->by_base, base, 0);
    struct node *after = node_at_least(arena->by_base, base, 0);
    struct extent *spare = NULL;
    if (before && before->key + OF_BASE(before)->size.key == base) {
        spare = OF_BASE(before);
        base = spare->base.key;
        size += spare->size.key;
        extent_pull(arena, spare);
    }
    if (after && after->key == base + size) {
        struct extent *extent = OF_BASE(after);
        size += extent->size.key;
        extent_pull(arena, extent);
        free(spare);
        spare = extent;
    }
    if (!spare) spare = malloc(sizeof *spare);
    if (spare) extent_put(arena, spare, base, size); /* else that much address space is lost, no memory */
}
