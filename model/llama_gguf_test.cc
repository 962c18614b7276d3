#include "model/llama_gguf.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "model/llama_test_engine.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;

TEST(GgufFileTest, ListsTensorsAndReadsThem) {
  GgufFile file = *GgufFile::open(test_model("base"));
  EXPECT_EQ(file.tensors().size(), 272u);
  const GgufTensor& norm = file.tensors().at("output_norm.weight");
  EXPECT_EQ(norm.shape, (std::vector<std::int64_t>{576, 1, 1, 1}));
  Bytes bytes(norm.size);
  ASSERT_EQ(bytes.size(), 576 * sizeof(float));
  ASSERT_TRUE(file.read(norm, bytes));

  TestEngine engine(
      {.model_path = test_model("base"), .context_tokens_max = 64, .sequences_max = 1});
  EXPECT_EQ(*engine.runner().get_tensor("output_norm.weight"), bytes);
}

TEST(GgufFileTest, MetadataIsThatOfTheForwardPassAndVocabularyOnly) {
  const GgufFile base = *GgufFile::open(test_model("base"));
  const GgufFile f16 = *GgufFile::open(test_model("f16"));
  EXPECT_TRUE(base.metadata().contains("llama.rope.freq_base"));
  EXPECT_TRUE(base.metadata().contains("tokenizer.ggml.merges"));
  EXPECT_FALSE(base.metadata().contains("general.name"));
  EXPECT_EQ(base.metadata_digest(), f16.metadata_digest()) << "quantised otherwise, no more";
  EXPECT_NE(base.metadata_digest(), GgufFile::open(test_model("adapter"))->metadata_digest());
}

TEST(GgufFileTest, ReadingAFileThatShrankIsAnError) {
  const std::string path = ::testing::TempDir() + "llama_gguf_test_shrinks.gguf";
  std::filesystem::copy_file(test_model("adapter"), path,
                             std::filesystem::copy_options::overwrite_existing);
  GgufFile file = *GgufFile::open(path);
  const GgufTensor& tensor = file.tensors().at("blk.29.attn_v.weight.lora_b");
  Bytes bytes(tensor.size);
  EXPECT_TRUE(file.read(tensor, bytes));
  std::filesystem::resize_file(path, tensor.offset + tensor.size / 2);
  const Status read = file.read(tensor, bytes);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr(path));
  std::filesystem::remove(path);
}

TEST(GgufFileTest, RefusesWhatIsNone) {
  EXPECT_EQ(GgufFile::open("/nowhere.gguf").error().code, Code::kUnavailable);
  const std::string path = ::testing::TempDir() + "llama_gguf_test_none.gguf";
  std::ofstream(path) << "GGUX and then some";
  const auto file = GgufFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kBadRequest);
  EXPECT_THAT(file.error().message, HasSubstr("not a GGUF file"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace newmoon
