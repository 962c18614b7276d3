/* Upstream's reset: scheduler, two ranks with send queues, store keys that are absent,
   PROCESSING (a put between start and end) or COMPLETE, and remove_all, which drains rank
   0 only and removes COMPLETE keys only. One block hash. Weights are 1, 2, ..; a stored
   value is the weights that computed it.

   DRAIN_ALL  a repair: rank 1 is drained too
   WAITPROC   a repair: remove_all waits until no key is PROCESSING
   REPLICA    a second engine (rank queues 2, 3) that resets and updates at its own time
              over the same store

   The property is the assertion at "hit". */
#ifndef MAXU
#define MAXU 2
#endif
#ifdef REPLICA
#define NP 2
#else
#define NP 1
#endif
byte key[2];            /* per rank: 0 absent 1 PROCESSING 2 COMPLETE */
byte val[2];
byte w[NP];             /* weights of a replica */
bit  q[4]; byte qb[4];  /* rank's send queue: one put, with the bytes of its (pinned) block */
bit  inflight[4];       /* the put between PutStart and PutEnd */
proctype Rank(byte i) { byte r = i % 2;
 end: do
 :: atomic { q[i] && !inflight[i] && key[r]==0 -> key[r]=1; inflight[i]=1 }
 :: atomic { q[i] && !inflight[i] && key[r]!=0 -> q[i]=0 }          /* dedup by is_exist */
 :: atomic { inflight[i] -> key[r]=2; val[r]=qb[i]; inflight[i]=0; q[i]=0 }
 od }
proctype Sched(byte p) { byte n = 0;
 end: do
 :: atomic { !q[2*p] && !q[2*p+1] && !(key[0]==2 && key[1]==2) ->     /* miss: compute, queue a save on both ranks */
      q[2*p]=1; qb[2*p]=w[p]; q[2*p+1]=1; qb[2*p+1]=w[p] }
 :: atomic { key[0]==2 && key[1]==2 ->                               /* hit: load and run */
      assert(val[0]==w[p] && val[1]==w[p]) }
 :: n < MAXU ->                                                      /* reset, acked, then the update */
      !q[2*p];                                                       /* rank 0: request_queue.join() */
#ifdef DRAIN_ALL
      !q[2*p+1];
#endif
#ifdef WAITPROC
      atomic { key[0]!=1 && key[1]!=1 ->
#else
      atomic {
#endif
        if :: key[0]==2 -> key[0]=0; val[0]=0 :: else fi;            /* remove_all(force): COMPLETE only */
        if :: key[1]==2 -> key[1]=0; val[1]=0 :: else fi }
      w[p] = w[p] + 1; n++
 od }
init { atomic { w[0]=1; run Rank(0); run Rank(1); run Sched(0);
#ifdef REPLICA
  w[1]=1; run Rank(2); run Rank(3); run Sched(1);
#endif
 } }
