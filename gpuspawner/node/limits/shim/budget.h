/* The session's time on a card: one word for all its processes. */
#ifndef GPUSPAWNER_BUDGET_H
#define GPUSPAWNER_BUDGET_H

#include "common.h"

/* A session gets its part of every period at once, when its turn in the period comes: whoever uses all of it then computes
 * from its turn to the next session's, and two such do not wait for each other. Whoever uses less may spend it at any
 * moment. */
#define PERIOD_NS INT64_C(100000000)

int64_t budget_now(void);

/* Spends `ns` of the card's time (or gives back, where it is less than 0), whether they are there or not. */
void budget_charge(int card, int64_t ns);

/* Spends `ns` if there is time left; else returns when to ask again (nanoseconds of the monotonic clock), at most a period
 * from now. 0: spent. What is spent beyond what was there is owed, and the next turns pay for it. */
int64_t budget_take(int card, int64_t ns);

/* When the session's turn comes; 0 while it lasts. For cards of which no times are known. */
int64_t budget_turn(int card);

/* Whether several processes of the session computed on the card just now: they hold each other up. */
bool budget_is_shared(int card);

/* Whether work of `ns` that is launched now will run in the middle of the session's turn, where nobody else who uses all of
 * theirs is on the card. */
bool budget_alone(int card, int64_t ns);

#endif
