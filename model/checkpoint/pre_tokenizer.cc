#include "model/checkpoint/pre_tokenizer.h"

namespace sluice {

const char kGpt2Pattern[] = R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

namespace {

constexpr char kLlama3Pattern[] =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|)re"
    R"re([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr char kQwen2Pattern[] =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|)re"
    R"re([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr char kSingleDigitPattern[] = R"re(\p{N})re";

// DeepSeek V2: letters of scripts with case, punctuation, Han and Hangul, each on its own; written as code points.
constexpr char kDeepseekLettersPattern[] =
    R"re(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})re"
    R"re(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C})re"
    R"re(\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5})re"
    R"re(\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})re"
    R"re(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})re"
    R"re(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})re"
    R"re(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})re"
    R"re(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115})re"
    R"re(\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})re"
    R"re(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2})re"
    R"re(\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E})re"
    R"re(\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A})re"
    R"re(\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})re"
    R"re(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)re";
constexpr char kDeepseekPunctuationPattern[] =
    R"re(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)re";
constexpr char kDeepseekHanPattern[] = R"re([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)re";

// DeepSeek V3.
constexpr char kDeepseek3KanaPattern[] = R"re([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)re";
constexpr char kDeepseek3WordPattern[] =
    R"re([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)re"
    R"re([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

}  // namespace

std::optional<PreTokenizer> PreTokenizerByGgufName(std::string_view pre) {
  if (pre == "gpt-2" || pre == "default") return PreTokenizer{.split_patterns = {kGpt2Pattern}};
  if (pre == "smollm") return PreTokenizer{.split_patterns = {kSingleDigitPattern, kGpt2Pattern}};
  if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
    return PreTokenizer{.split_patterns = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true};
  }
  if (pre == "qwen2" || pre == "deepseek-r1-qwen") return PreTokenizer{.split_patterns = {kQwen2Pattern}, .nfc = true};
  if (pre == "deepseek-llm") {
    return PreTokenizer{.split_patterns = {"[\r\n]", kDeepseekLettersPattern, kDeepseekPunctuationPattern,
                                           R"re(\s+$)re", kDeepseekHanPattern, kSingleDigitPattern}};
  }
  if (pre == "deepseek-v3") {
    return PreTokenizer{.split_patterns = {R"re(\p{N}{1,3})re", kDeepseek3KanaPattern, kDeepseek3WordPattern}};
  }
  return std::nullopt;
}

}  // namespace sluice
