#include "core/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/names.h"
#include "core/errors.h"
#include "core/tensor.h"

namespace ferry::python {

namespace {

// A keyword: a function that sets its value in a configuration, and one that reads it.
struct Setting {
  std::function<void(ExchangeConfig&, nb::handle)> set;
  std::function<nb::object(const ExchangeConfig&)> get;
};

// place(config) is the field of the keyword.
template <typename Place>
Setting field(Place place) {
  return {[place](ExchangeConfig& config, nb::handle value) {
            auto& target = place(config);
            target = nb::cast<std::decay_t<decltype(target)>>(value);
          },
          [place](const ExchangeConfig& config) { return nb::cast(place(config)); }};
}

// A keyword whose values are names, in the order of the enumeration.
template <typename Place>
Setting one_of(std::vector<const char*> names, Place place) {
  return {[names, place](ExchangeConfig& config, nb::handle value) {
            const auto name = nb::cast<std::string>(nb::str(value));
            auto& target = place(config);
            for (std::size_t i = 0; i < names.size(); ++i) {
              if (name != names[i]) continue;
              target = static_cast<std::decay_t<decltype(target)>>(i);
              return;
            }
            refuse("\"{}\", need {}", name, fmt::join(names, ", "));
          },
          [names, place](const ExchangeConfig& config) -> nb::object {
            FERRY_CHECK(static_cast<std::size_t>(place(config)), <, names.size());
            return nb::str(names[static_cast<std::size_t>(place(config))]);
          }};
}

Setting dtype_setting() {
  return {[](ExchangeConfig& config, nb::handle value) {
            Tensor tensor;
            tensor.element = element_from_object(value);
            config.dtype = data_type(tensor, "dtype");
          },
          [](const ExchangeConfig& config) -> nb::object {
            return nb::str(element_name(element_of(config.dtype)));
          }};
}

const std::map<std::string, Setting, std::less<>>& settings() {
#define FERRY_AT(member) \
  [](auto& config) -> auto& { return config.member; }
  static const std::map<std::string, Setting, std::less<>> all{
      {"max_tokens", field(FERRY_AT(max_tokens))},
      {"hidden", field(FERRY_AT(hidden))},
      {"num_experts", field(FERRY_AT(num_experts))},
      {"top_k", field(FERRY_AT(top_k))},
      {"dtype", dtype_setting()},
      {"layout", one_of({"rank_major", "expert_major", "padded"}, FERRY_AT(layout))},
      {"expert_alignment", field(FERRY_AT(expert_alignment))},
      {"zero_gaps", field(FERRY_AT(zero_gaps))},
      {"row_capacity", field(FERRY_AT(row_capacity))},
      {"expert_capacity", field(FERRY_AT(expert_capacity))},
      {"expert_rank", field(FERRY_AT(expert_rank))},
      {"token_ranks", field(FERRY_AT(token_ranks))},
      {"expert_ranks", field(FERRY_AT(expert_ranks))},
      {"max_output_row_bytes", field(FERRY_AT(max_output_row_bytes))},
      {"depth", field(FERRY_AT(depth))},
      {"workers", field(FERRY_AT(workers))},
      {"wire",
       one_of({"none", "int8", "int8_static", "fp8", "fp8_pow2", "fp8_ue8m0"}, FERRY_AT(wire))},
      {"combine_wire", one_of({"none", "int8_8", "int8_128", "logfmt10"}, FERRY_AT(combine_wire))},
      {"scale_order", one_of({"row_major", "column_major"}, FERRY_AT(scale_order))},
      {"scale_bytes", field(FERRY_AT(scale_bytes))},
      {"num_shared_experts", field(FERRY_AT(shared.num_experts))},
      {"num_shared_ranks", field(FERRY_AT(shared.num_ranks))},
      {"shared_rule", one_of({"by_rank", "by_token"}, FERRY_AT(shared.rule))},
      {"zero_experts", field(FERRY_AT(special.zero))},
      {"copy_experts", field(FERRY_AT(special.copy))},
      {"constant_experts", field(FERRY_AT(special.constant))},
      {"replicas", field(FERRY_AT(replicas.instances))},
      {"replica_choice", one_of({"by_rank", "by_token", "by_table"}, FERRY_AT(replicas.choice))},
      {"tp_size", field(FERRY_AT(tp_size))},
      {"algorithm", one_of({"auto", "fullmesh", "hierarchical", "allgather"}, FERRY_AT(algorithm))},
      {"node_sums", one_of({"row_type", "fp32", "exact"}, FERRY_AT(node_sums))},
  };
#undef FERRY_AT
  return all;
}

}  // namespace

ExchangeConfig read_config(const nb::kwargs& keywords) {
  ExchangeConfig config;
  for (const auto& [key, value] : keywords) {
    const auto name = nb::cast<std::string>(key);
    const auto setting = settings().find(name);
    if (setting == settings().end()) {
      std::vector<std::string> known;
      for (const auto& [each, unused] : settings()) known.push_back(each);
      refuse("an exchange has no setting \"{}\"{}", name, internal::nearest_name(name, known));
    }
    try {
      setting->second.set(config, value);
    } catch (const nb::cast_error&) {
      refuse("{} is {}, which is of the wrong type or too large", name,
             nb::cast<std::string>(nb::repr(value)));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
    }
  }
  for (const char* const needed : {"max_tokens", "hidden", "num_experts", "top_k"}) {
    if (!keywords.contains(needed)) refuse("an exchange needs {}, which is not given", needed);
  }
  return config;
}

nb::dict write_config(const ExchangeConfig& config) {
  nb::dict all;
  for (const auto& [name, setting] : settings()) all[name.c_str()] = setting.get(config);
  return all;
}

}  // namespace ferry::python
