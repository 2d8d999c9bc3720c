// The vocabulary of toy models: byte-level BPE small enough to read, so that any text can be encoded and decoded. Ids:
// three special tokens, the 256 bytes in the order of their spelling, then one token a merge.

import { type GgufInput, i32s } from './gguf-writer.js'

/** Ids 0, 1, 2: end of text (padding), start of a message (BOS), end of a message (EOS). */
export const TOY_SPECIALS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'] as const

/** Pairs in order of rank; every part is a byte or an earlier result. `Ġ` is how byte-level BPE spells a space. */
const MERGES = [
  'Ġ t',
  'h e',
  'i n',
  'r e',
  'o n',
  'Ġ a',
  'Ġt he',
  'e r',
  'a n',
  'Ġa n',
  'Ġan d',
  'o r',
  'Ġ s',
  'Ġ w',
  'e n',
  'in g',
  'o u',
  'Ġ o',
  'Ġo n',
  'Ġ c',
  'l l',
  'Ġt o',
  's t',
  'Ġ b',
  'i s',
  'Ġ f',
  'Ġ is',
  'Ġ in',
  'a t',
  'u s',
  'us er',
  'a s',
  'as s',
  'is t',
  'ass ist',
  'an t',
  'assist ant',
]

/** Spelling of every byte: printable ones stand for themselves, the rest for characters from U+0100 on. */
export function byteSpellings(): readonly string[] {
  const spellings: string[] = []
  let next = 256
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
    spellings.push(String.fromCodePoint(printable ? byte : next++))
  }
  return spellings
}

/** Spellings by id. */
export function toyTokens(): readonly string[] {
  return [...TOY_SPECIALS, ...byteSpellings(), ...MERGES.map((merge) => merge.replace(' ', ''))]
}

/** Whether a token is plain ASCII text, which toy models are made to prefer. */
export function isPlainText(id: number): boolean {
  const byte = id - TOY_SPECIALS.length
  return byte === 10 || (byte >= 32 && byte <= 126) || byte >= 256
}

/** The tokenizer's part of a GGUF's metadata. `pre` names the pre-tokenizer, as `tokenizer.ggml.pre` does. */
export function toyTokenizerMetadata(pre: string, specials: readonly string[] = []): Record<string, GgufInput> {
  const plain = toyTokens()
  const tokens = [...plain, ...specials]
  return {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': pre,
    'tokenizer.ggml.tokens': tokens,
    // 3 is a control token, 1 a normal one.
    'tokenizer.ggml.token_type': i32s(tokens.map((_, id) => (id < TOY_SPECIALS.length || id >= plain.length ? 3 : 1))),
    'tokenizer.ggml.merges': MERGES,
    'tokenizer.ggml.bos_token_id': 1,
    'tokenizer.ggml.eos_token_id': 2,
    'tokenizer.ggml.padding_token_id': 0,
    'tokenizer.ggml.add_bos_token': false,
    'tokenizer.chat_template': CHATML,
  }
}

const CHATML = [
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}",
  "{{ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}",
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
].join('')
