// scale <topology> ...: what join, exchange, dispatch, combine and a death cost on ranks of each
// topology, and the law that each count follows. --experts E, --tokens T, --top-k K and
// --rank-major hold for the topologies that follow them; without --experts there is one expert for
// each rank.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "simulator/counts.h"
#include "simulator/one_processor.h"

namespace {

using namespace ferry::test;

std::vector<Shape> shapes_of(int argc, char** argv) {
  Shape shape;
  std::vector<Shape> shapes;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return ++i < argc ? std::atoi(argv[i]) : 0; };
    if (word == "--experts") {
      shape.num_experts = number();
    } else if (word == "--tokens") {
      shape.tokens = number();
    } else if (word == "--top-k") {
      shape.top_k = number();
    } else if (word == "--rank-major") {
      shape.layout = ferry::Layout::kRankMajor;
    } else {
      shapes.push_back(shape);
      shapes.back().topology = word;
      if (shape.num_experts == 0) shapes.back().num_experts = shapes.back().num_ranks();
    }
  }
  return shapes;
}

void print(const std::vector<Shape>& shapes, const std::vector<std::vector<Count>>& columns) {
  std::printf("| count | law |");
  for (const Shape& shape : shapes) std::printf(" %s |", shape.topology.c_str());
  std::printf("\n|---|---|%s\n",
              [&] {
                std::string rule;
                for (std::size_t i = 0; i < shapes.size(); ++i) rule += "---|";
                return rule;
              }()
                  .c_str());
  for (std::size_t row = 0; row < columns[0].size(); ++row) {
    std::printf("| %s | %s |", columns[0][row].name.c_str(), columns[0][row].law_name.c_str());
    for (const auto& column : columns) std::printf(" %.6g |", column[row].value);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  use_one_processor();
  const std::vector<Shape> shapes = shapes_of(argc, argv);
  std::vector<std::vector<Count>> columns;
  int status = shapes.empty() ? 2 : 0;
  for (const Shape& shape : shapes) {
    const ScaleCounts counted = count(shape);
    for (const std::string& wrong : counted.wrong) {
      std::printf("%s: %s\n", shape.topology.c_str(), wrong.c_str());
      status = 1;
    }
    columns.push_back(counts_of(shape, counted));
  }
  if (!columns.empty()) print(shapes, columns);
  return status;
}
