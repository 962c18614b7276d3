/* The fence: two engines of two ranks each over one shared store, one block hash, and
   one physical block a rank, so that its reuse is the ABA case. Weights are 1..3; a
   value, stored or in a block, is the weights that computed it (0: none).

   Scopes. Named: the scope is the declared label (1..2), shared by the engines.
   -DUNIQ: unique, 2 + engine * NE + epoch.
   A step goes to each rank through a FIFO of depth 2: {kind, scope, epoch}. Saves run
   behind, a put is a start and an end.

   Rules. Each is a -D and carries the name under which the code keeps it; without it the
   design is as if the rule had not been written.
   PIN    a block with a save queued or running is not reused
   STEP   a block with a step still to be executed is not reused
   FLOOR  a rank refuses loads and saves below the highest epoch it has heard of
   GEN    rule ONE-LOAD: load reports name their load; the scheduler ignores others
   HOLD   the part of BIRTH about requests: a fence resets every request that holds
          blocks, not only the running ones
   BIND   a weight write on a rank raises its floor to the epoch the writer sealed to
   HEARD  instead of BIND: it raises the floor past the epochs the rank has heard of.
          This is not enough
   SEAL   while weights move nothing is published or looked up; the scope is opened by a
          fence (the adopt) after the last rank has moved
   PUNIQ  rule PURGE: only unique scopes are purged
   EARLY  the part of SEAL about ranks that counted different writes: a scope may be opened
          while only one of them has moved (with SPLIT, SEAL and BIND, for one engine)
   COUNT  with EARLY, the part of BIND about counts: the one that moves later refuses that
          scope's epoch, too
   OWN    with EARLY: that scope is unique (else it has the declared label)

   Environment.
   ASYNC    an update comes while steps are in flight (else paused, none in flight)
   SPLIT    weights change rank by rank, after the fence (else at one with it)
   LOSS     a fence message may be lost
   CRASH    one rank crashes; the other's put goes on; restart with the first weights
   RELABEL  label 1 is used again for weights 3
   CHKP     check: no purge of a scope that is somebody's current one
   ONE      one engine only                    MAXU, MAXU1  updates of engine 0, 1

   The property is the assertion at "the read": a request whose KV was loaded reads what
   the weights it runs on computed, on both ranks. */
#ifndef MAXU
#define MAXU 2
#endif
#ifndef MAXU1
#define MAXU1 MAXU
#endif
#define MU(p) ((p)==0 -> MAXU : MAXU1)
#if defined(UNIQ) || defined(FLOOR) || defined(GEN) || defined(BIND) || defined(HEARD)
#define EPINC(p) ep[p]++
#else
#define EPINC(p) skip
#endif
#ifdef EARLY
#define NE 7
#else
#define NE 5
#endif
#if defined(UNIQ) || defined(EARLY)
#define NS (3+2*NE)
#else
#define NS 3
#endif
#ifdef OWN
#define EARLY_SCOPE(p) (2+(p)*NE+ep[p])
#else
#define EARLY_SCOPE(p) SCOPE(p,lab[p])
#endif
#ifdef UNIQ
#define SCOPE(p,l) (2+(p)*NE+ep[p])
#else
#define SCOPE(p,l) (l)
#endif
#define K(s,r) ((s)*2+(r))
#define COMP 1
#define LOAD 2
byte key[NS*2]; byte val[NS*2];
byte ep[2]; byte sc[2]; byte lab[2]; byte nu[2]; byte gen[2];
byte rs[2];               /* request: 0 none 1 computing 2 loading 3 loaded, waiting to be scheduled */
byte cnt[2]; bit bad[2];  /* load completions, any failed */
bit  moving[2];           /* SPLIT: weights in motion */
byte target[2];
byte w[4]; byte blk[4]; byte fl[4];
#ifdef HEARD
byte hd[4];               /* highest epoch the rank has heard of */
#define FENCED(r,p) fl[r]=ep[p]; hd[r]=ep[p]
#define HEARS(r,e) if :: e>hd[r] -> hd[r]=e :: else fi
#else
#define FENCED(r,p) fl[r]=ep[p]
#define HEARS(r,e) skip
#endif
chan q[4] = [2] of {byte,byte,byte};
byte sq[4]; byte svs[4]; byte sve[4];        /* save: 0 none 1 queued 2 put started; scope; epoch */
byte ld[4]; byte lds[4]; byte lde[4]; byte ldv[4];   /* load behind the steps: 0 none 1 queued 2 transferring ldv */
byte zs; byte zr; byte zv; byte ncrash;      /* zombie put of a crashed replica's surviving rank */
byte pg;                                     /* scope waiting for purge (0 none) */

/* a fence's message to both ranks: queued saves go */
inline tell(p) { r=2*p; do :: r<=2*p+1 ->
#ifdef LOSS
     if :: FENCED(r,p); if :: sq[r]==1 -> sq[r]=0; svs[r]=0; sve[r]=0 :: else fi :: skip fi;
#else
     FENCED(r,p); if :: sq[r]==1 -> sq[r]=0; svs[r]=0; sve[r]=0 :: else fi;
#endif
     r++ :: else -> break od; r=0 }
inline enq(p,k) { q[2*p]!k,sc[p],ep[p]; q[2*p+1]!k,sc[p],ep[p] }
#define IDLEQ(p) (len(q[2*(p)])==0 && len(q[2*(p)+1])==0)

#if defined(HEARD)
#define BINDF(r) if :: hd[r]+1>fl[r] -> fl[r]=hd[r]+1 :: else fi;
#elif defined(COUNT)
#define BINDF(r) fl[r]=ep[p]+(sc[p]!=0);
#elif defined(BIND)
#define BINDF(r) fl[r]=ep[p];
#else
#define BINDF(r) skip;
#endif
#ifdef PIN
#define PIN_OK(p) (sq[2*(p)]==0 && sq[2*(p)+1]==0)
#else
#define PIN_OK(p) (1)
#endif
#ifdef STEP
#define STEP_OK(p) (IDLEQ(p) && ld[2*(p)]==0 && ld[2*(p)+1]==0)
#else
/* only a load that a rank has accepted holds the block */
#define STEP_OK(p) (len(q[2*(p)])<2 && len(q[2*(p)+1])<2 && ld[2*(p)]==0 && ld[2*(p)+1]==0)
#endif
#ifdef SEAL
#define SEAL_OK(p) (sc[p]!=0)
#else
#define SEAL_OK(p) (1)
#endif
#ifdef ASYNC
#define PAUSED(p) (1)
#else
#define PAUSED(p) (rs[p]!=1 && IDLEQ(p))
#endif
#ifdef GEN
#define GEN_OK (e==ep[i/2])
#else
#define GEN_OK (1)
#endif

proctype Sched(byte p) {
 byte l; byte nw; byte r; byte lost; byte old;
 end: do
 /* schedule a request: allocate the only block */
 :: atomic { rs[p]==0 && PIN_OK(p) && STEP_OK(p) -> cnt[p]=0; bad[p]=0;
     if
     :: key[K(sc[p],0)]==2 && key[K(sc[p],1)]==2 && SEAL_OK(p) -> rs[p]=2; enq(p,LOAD)
     :: else -> rs[p]=1; enq(p,COMP)
     fi }
 /* step output */
 :: atomic { rs[p]==1 && IDLEQ(p) -> rs[p]=0 }
 :: atomic { rs[p]==2 && cnt[p]>=2 -> if :: bad[p] -> rs[p]=0 :: else -> rs[p]=3 fi }
 /* a request whose KV was loaded runs: the read */
 :: atomic { rs[p]==3 && !moving[p] ->  /* judged only when all ranks have the same weights */
     assert(blk[2*p]==w[2*p] && blk[2*p+1]==w[2*p+1]); rs[p]=0 }
 /* update + fence */
 :: atomic { nu[p]<MU(p) && !moving[p] && PAUSED(p) -> nu[p]++;
     l = 3-lab[p]; nw = l;                            /* A -> B -> A */
#ifdef RELABEL
     if :: l==1 -> nw=3 :: else fi;
#endif
     old = sc[p]; EPINC(p); lab[p]=l; 
#ifdef SEAL
     sc[p]=0;
#else
     sc[p]=SCOPE(p,l);
#endif
#ifdef PUNIQ
#ifdef UNIQ
     pg = old;
#endif
#else
     pg = old;
#endif
     /* running requests are preempted; HOLD: so is one that waits with loaded KV */
     if :: rs[p]==1 || rs[p]==2 -> rs[p]=0 :: else fi;
#ifdef HOLD
     rs[p]=0;
#endif
     r=2*p; do :: r<=2*p+1 ->
        lost=0;
#ifdef LOSS
        if :: lost=1 :: lost=0 fi;
#endif
        if :: !lost -> FENCED(r,p); if :: sq[r]==1 -> sq[r]=0; svs[r]=0; sve[r]=0 :: else fi :: else fi;
#ifndef SPLIT
        w[r]=nw; BINDF(r)
#endif
        r++ :: else -> break od;
#ifndef SPLIT
     sc[p]=SCOPE(p,l);
#endif
#ifdef SPLIT
     moving[p]=1; target[p]=nw;
#endif
     l=0; nw=0; r=0; lost=0; old=0 }
#ifdef SPLIT
 :: atomic { moving[p] && w[2*p]!=target[p] -> w[2*p]=target[p]; BINDF(2*p) }
 :: atomic { moving[p] && w[2*p+1]!=target[p] -> w[2*p+1]=target[p]; BINDF(2*p+1) }
 :: atomic { moving[p] && w[2*p]==target[p] && w[2*p+1]==target[p]
     -> moving[p]=0; 
#ifdef SEAL
     /* adopt = a fence */
#ifdef EARLY
     if :: sc[p]>2 -> pg=sc[p] :: else fi;
#endif
     EPINC(p); sc[p]=SCOPE(p,lab[p]); rs[p]=0; tell(p);
#endif
     target[p]=0 }
#endif
#ifdef EARLY
 /* adopt when the ranks counted different writes */
 :: atomic { moving[p] && sc[p]==0 && (w[2*p]==target[p])+(w[2*p+1]==target[p])==1
     -> EPINC(p); sc[p]=EARLY_SCOPE(p); rs[p]=0; tell(p) }
 /* the read under that scope; a rank that refuses its step makes the request begin anew */
 :: atomic { rs[p]==3 && moving[p] && sc[p]!=0 ->
     if
     :: fl[2*p]<=ep[p] && fl[2*p+1]<=ep[p] ->
        assert(blk[2*p]==w[2*p] && blk[2*p+1]==w[2*p+1])
     :: else
     fi; rs[p]=0 }
#endif
#ifdef CRASH
 /* a rank dies: its put stays PROCESSING for ever; the other rank's running put goes on in a zombie; engine restarts with weights 1 */
 :: atomic { ncrash==0 && nu[p]>0 && ep[p]<NE-2 -> ncrash=1;
     if :: r=0 :: r=1 fi;
     if :: sq[2*p+r]!=0 -> zs=svs[2*p+r]; zr=r; zv=blk[2*p+r]; if :: sq[2*p+r]==2 -> key[K(zs,r)]=1 :: else fi :: else fi;
     EPINC(p); lab[p]=1; sc[p]=SCOPE(p,1); gen[p]=0; rs[p]=0; cnt[p]=0; bad[p]=0; moving[p]=0; target[p]=0;
     r=2*p; do :: r<=2*p+1 -> sq[r]=0; svs[r]=0; sve[r]=0; ld[r]=0; lds[r]=0; lde[r]=0; ldv[r]=0; w[r]=1; blk[r]=0; FENCED(r,p); r++ :: else -> break od; r=0;
     do :: len(q[2*p])>0 -> q[2*p]?l,nw,lost :: len(q[2*p+1])>0 -> q[2*p+1]?l,nw,lost :: IDLEQ(p) -> break od; l=0; nw=0; lost=0 }
#endif
 od }

proctype Rank(byte i) { byte k; byte s; byte e;
 end: do
 :: atomic { len(q[i])>0 && ld[i]==0 -> q[i]?k,s,e;
      if :: e>fl[i] -> fl[i]=e :: else fi; HEARS(i,e);
      if
      :: k==COMP -> blk[i]=w[i];
#ifdef SEAL
         if :: s==0 -> skip :: else ->
#endif
         if
#ifdef FLOOR
         :: e<fl[i] -> skip
#endif
         :: else -> if :: sq[i]==0 -> sq[i]=1; svs[i]=s; sve[i]=e :: else fi
         fi
#ifdef SEAL
         fi
#endif
      :: k==LOAD -> ld[i]=1; lds[i]=s; lde[i]=e
      fi; k=0; s=0; e=0 }
 :: atomic { ld[i]==1 ->
      e=lde[i];
#ifdef FLOOR
      if :: e<fl[i] -> ld[i]=3            /* refused: ended, failed */
         :: else ->
#endif
      if :: key[K(lds[i],i%2)]==2 -> ldv[i]=val[K(lds[i],i%2)]; ld[i]=2 :: else -> ld[i]=3 fi;
#ifdef FLOOR
      fi;
#endif
      e=0 }
 :: atomic { ld[i]>=2 -> e=lde[i];
      if :: ld[i]==2 -> blk[i]=ldv[i] :: else -> if :: rs[i/2]==2 && GEN_OK -> bad[i/2]=1 :: else fi fi;
      if :: rs[i/2]==2 && GEN_OK -> cnt[i/2]++ :: else fi;
      ld[i]=0; lds[i]=0; lde[i]=0; ldv[i]=0; e=0 }
 :: atomic { sq[i]==1 ->
#ifdef FLOOR
      if :: sve[i]<fl[i] -> sq[i]=0 :: else ->
#endif
      if :: key[K(svs[i],i%2)]==0 -> key[K(svs[i],i%2)]=1; sq[i]=2 :: else -> sq[i]=0 fi;
#ifdef FLOOR
      fi;
#endif
      if :: sq[i]==0 -> svs[i]=0; sve[i]=0 :: else fi }
 :: atomic { sq[i]==2 -> key[K(svs[i],i%2)]=2; val[K(svs[i],i%2)]=blk[i]; sq[i]=0; svs[i]=0; sve[i]=0 }
 od }

proctype Env() { byte r;
 end: do
 :: atomic { pg!=0 ->
#ifdef CHKP
      assert(sc[0]!=pg && sc[1]!=pg);
#endif
      r=0; do :: r<2 -> if :: key[K(pg,r)]==2 -> key[K(pg,r)]=0; val[K(pg,r)]=0 :: else fi; r++ :: else -> break od; r=0; pg=0 }
 :: atomic { zs!=0 -> if :: key[K(zs,zr)]!=2 -> key[K(zs,zr)]=2; val[K(zs,zr)]=zv :: else fi; zs=0; zr=0; zv=0 }
 od }

init { atomic { byte i=0; do :: i<4 -> w[i]=1; i++ :: else -> break od; lab[0]=1; lab[1]=1; sc[0]=SCOPE(0,1); sc[1]=SCOPE(1,1);
  i=0; run Rank(0); run Rank(1); run Sched(0);
#ifndef ONE
  run Rank(2); run Rank(3); run Sched(1);
#endif
  run Env() } }
