// What belongs to one rank of a replica. Internal to replica*.cc.
#pragma once

#include "sim/replica.h"

namespace newmoon::sim {

struct Replica::RankParts {
  RankParts(Surroundings world, std::size_t replica, const ModelInfo& info, std::size_t number,
            std::function<Epoch()> epoch);

  Process process;
  SimMemory memory;
  SimStore store;
  SimTaskQueue send;
  SimTaskQueue receive;
  SimTaskQueue quick;
  SimTaskQueue bulk;
  StoreWorker worker;
  LookupKeyServer server;
  SimRank rank;
};

}  // namespace newmoon::sim
