// How each tokenizer family cuts text into words before byte-pair merging, keyed by the name that GGUF files carry in
// `tokenizer.ggml.pre`. The expressions are the published ones of each family's tokenizer.json. Invariant: a name that
// is not in this table is refused by gguf-tokenizer.ts, because a near miss gives other tokens without any error.

export interface PreTokenizer {
  /** Cuts applied one after another, each to every piece of the one before; matches and gaps are pieces. */
  readonly splits: readonly string[]
  /** Unicode normalization that the family applies first. */
  readonly normalizer?: 'NFC'
  /** A word that is a token as a whole is that token, whatever the merges say. */
  readonly ignoreMerges?: true
  /** Whether BOS is wanted when the file does not say. */
  readonly addBos?: true
}

const CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
const BREAKS = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+'
const DIGIT = '\\p{N}'

/** The expression that byte-level tokenizers use unless their file names another. */
export const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

const LLAMA3 = `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${BREAKS}`
const QWEN2 = `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${BREAKS}`
const QWEN35 = `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${BREAKS}`

const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]'
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]'
const cased = (suffix: string): string =>
  `[^\\r\\n\\p{L}\\p{N}]?${UPPER}*${LOWER}+${suffix}|[^\\r\\n\\p{L}\\p{N}]?${UPPER}+${LOWER}*${suffix}`
const TEKKEN = `${cased('')}|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${BREAKS}`
const GPT4O = `${cased(`${CONTRACTIONS}?`)}|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${BREAKS}`

const CJK = '[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+'
// Cased letters of the scripts that DeepSeek LLM lists one by one.
const DEEPSEEK_LETTERS =
  'A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377' +
  '\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556' +
  '\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a' +
  '\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4' +
  '\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc' +
  '\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f' +
  '\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b' +
  '\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a' +
  '\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}' +
  '\u{118a0}-\u{118df}\u{1e900}-\u{1e943}'
const DEEPSEEK_LLM = [
  '[\\r\\n]',
  `\\s?[${DEEPSEEK_LETTERS}]+`,
  '\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+',
  // The family's `\s+$`, kept from starting inside a run: the same matches without quadratic time.
  '(?<!\\s)\\s+$',
  CJK,
  '\\p{N}+',
]
const DEEPSEEK_CODER = ['[\\r\\n]', '\\s?\\p{L}+', '\\s?\\p{P}+', CJK, DIGIT]
const DEEPSEEK3 = [
  '\\p{N}{1,3}',
  '[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+',
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+' +
    `| ?[\\p{P}\\p{S}]+[\\r\\n]*|${BREAKS}`,
]

const gpt2: PreTokenizer = { splits: [GPT2] }
const digitsThenGpt2: PreTokenizer = { splits: [DIGIT, GPT2] }
const llama3: PreTokenizer = { splits: [LLAMA3], ignoreMerges: true, addBos: true }

/** Pre-tokenizers by GGUF name. */
export const PRE_TOKENIZERS: Readonly<Record<string, PreTokenizer>> = {
  'gpt-2': gpt2,
  olmo: { splits: [GPT2], normalizer: 'NFC' },
  mpt: { splits: [GPT2], normalizer: 'NFC' },
  smollm: digitsThenGpt2,
  starcoder: digitsThenGpt2,
  refact: digitsThenGpt2,
  'command-r': { splits: [DIGIT, GPT2], normalizer: 'NFC' },
  falcon: { splits: ['[\\p{P}$+<=>^~|`]+', GPT2, '[0-9][0-9][0-9]'] },
  'llama-bpe': llama3,
  llama3,
  'llama-v3': llama3,
  qwen2: { splits: [QWEN2], normalizer: 'NFC' },
  'deepseek-r1-qwen': { splits: [QWEN2], normalizer: 'NFC' },
  qwen35: { splits: [QWEN35] },
  tekken: { splits: [TEKKEN], ignoreMerges: true, addBos: true },
  'gpt-4o': { splits: [GPT4O] },
  llama4: { splits: [GPT4O], addBos: true },
  'deepseek-llm': { splits: DEEPSEEK_LLM },
  'deepseek-coder': { splits: DEEPSEEK_CODER },
  'deepseek-v3': { splits: DEEPSEEK3 },
  default: { splits: ['[\\p{P}$+<=>^~|]+', GPT2, '\\p{N}+', '[0-9][0-9][0-9]'] },
}
