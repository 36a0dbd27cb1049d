#include "bindings.h"
#include "system/giving_way.h"

namespace hocket {

void bind_system(pybind11::module_& module) {
  module.def("begin_giving_way", &begin_giving_way);
  module.def("end_giving_way", &end_giving_way);
  module.def("num_rests", &num_rests);
}

}  // namespace hocket
