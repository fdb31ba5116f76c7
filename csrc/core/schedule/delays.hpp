// The delays of one task; `ScheduleKernels` draws many at a time, with equal bits.
#pragma once

#include <cstdint>

#include "kernels/delay_model.hpp"

namespace fedbuff {

inline double draw_wait(const DelayModel& model, std::uint32_t client, std::uint32_t task) {
  return draw(model.component[kWait], model.seed, client, task, kWait);
}

inline double draw_upload(const Distribution& upload, std::uint64_t seed, std::uint32_t client, std::uint32_t task) {
  return draw(upload, seed, client, task, kUpload);
}

inline double draw_server_time(const Distribution& law, std::uint64_t seed, std::uint32_t client, std::uint32_t task) {
  return draw(law, seed, client, task, kServer);
}

// download + compute * speed + upload
inline double draw_duration(const DelayModel& model, std::uint32_t client, std::uint32_t task) {
  double compute = draw(model.component[kCompute], model.seed, client, task, kCompute);
  if (model.speed != nullptr) {
    compute = compute * model.speed[client];
  }
  return (draw(model.component[kDownload], model.seed, client, task, kDownload) + compute) +
         draw(model.component[kUpload], model.seed, client, task, kUpload);
}

}  // namespace fedbuff
