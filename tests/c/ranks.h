/* SPDX-License-Identifier: MIT */
/* Threads as ranks: an rf_collective over memory that they share. */
#ifndef ROWFOLD_TESTS_RANKS_H
#define ROWFOLD_TESTS_RANKS_H

#include <pthread.h>
#include <rowfold.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_RANKS = 40 };

/* Two turns of data, since a rank may begin the next exchange while another still reads this one's: never the one
 * after that. */
typedef struct room {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int ranks, here[MOST_RANKS], arrived, broken, exchanges;
    unsigned turn;
    char *data[2];
    size_t bytes;
} room;

typedef struct seat {
    room *room;
    int rank;
    int leaves_after; /* exchanges that it takes part in before it is gone; -1: all */
} seat;

static void open_room(room *r, int ranks) {
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->moved, NULL);
    r->ranks = ranks;
}

static void close_room(room *r) {
    free(r->data[0]), free(r->data[1]);
    pthread_mutex_destroy(&r->lock), pthread_cond_destroy(&r->moved);
}

static int missing(const room *r) {
    for (int i = 0; i < r->ranks; i++)
        if (!r->here[i]) return i;
    return -1;
}

static int arrive(room *r, int rank, const void *send, size_t bytes, double timeout) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    const double whole = timeout > 0 ? timeout : 600;
    end.tv_sec += (time_t)whole, end.tv_nsec += (long)((whole - (double)(time_t)whole) * 1e9);
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    const unsigned turn = r->turn;
    char **data = &r->data[turn % 2];
    if (!r->arrived++) *data = realloc(*data, bytes * (size_t)r->ranks + 1), r->bytes = bytes;
    if (r->bytes != bytes) r->broken = 1;
    else memcpy(*data + (size_t)rank * bytes, send, bytes);
    r->here[rank] = 1;
    if (r->arrived == r->ranks) {
        memset(r->here, 0, sizeof r->here);
        r->arrived = 0, r->turn++, r->exchanges++;
        pthread_cond_broadcast(&r->moved);
    }
    while (r->turn == turn && !r->broken)
        if (pthread_cond_timedwait(&r->moved, &r->lock, &end)) break;
    return r->turn != turn;
}

static int32_t gather_in_room(void *user, const void *send, void *receive, size_t bytes, double timeout,
    int32_t *failed, char *message, size_t message_size) {
    const seat *s = user;
    room *r = s->room;
    pthread_mutex_lock(&r->lock);
    const unsigned turn = r->turn;
    const int gone = s->leaves_after >= 0 && r->exchanges >= s->leaves_after;
    const int all = !gone && arrive(r, s->rank, send, bytes, timeout);
    if (all) memcpy(receive, r->data[turn % 2], bytes * (size_t)r->ranks);
    else *failed = gone ? s->rank : missing(r), strncpy(message, "it did not come in time", message_size - 1);
    pthread_mutex_unlock(&r->lock);
    return !all;
}

static rf_collective collective_of(seat *s, double timeout) {
    return (rf_collective){.size = sizeof(rf_collective),
        .user = s,
        .rank = s->rank,
        .num_ranks = s->room->ranks,
        .timeout = timeout,
        .all_gather = gather_in_room};
}

#endif
