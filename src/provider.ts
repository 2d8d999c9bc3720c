// What computes a model, by the kinds of `engine.provider`: the forward pass of kernels/, or ONNX Runtime. Chosen once, by
// the composition root, and named in every chain's root: KV of one is never taken for the other's, whose last bits differ.

import type { KvLayout } from './core/block.js'
import type { Runner } from './engine/contract.js'
import { networkRunner } from './engine/network-runner.js'
import type { ModelManifest } from './model/contract.js'
import { DECODE_ROWS } from './model/graph/attention-decode.js'
import { loadNetwork, networkFault } from './model/load-network.js'
import { fastNetwork, type NetworkForm, networkForms } from './native/network.js'

/** `onnx-cpu` is a provider of ONNX Runtime: `cpu` in the config. */
export type Provider = 'native' | 'onnx-cpu'

export interface ProviderWish {
  /** `engine.provider` */
  readonly provider: string
  /** `engine.kernels` */
  readonly kernels: 'auto' | 'native' | 'fallback'
}

export interface ChosenProvider {
  readonly provider: Provider
  /** In a few words, for the log. */
  readonly because: string
}

type Sizes = Pick<ModelManifest, 'heads' | 'kvHeads' | 'headDim' | 'dim' | 'hiddenDim'>

/**
 * `auto` takes the forward pass of kernels/ where this processor has a fast form of it and the model's sizes fit.
 * @throws Error that names the key, for an unknown kind, or for `native` where it cannot be.
 */
export function chooseProvider({ provider, kernels }: ProviderWish, sizes: Sizes): ChosenProvider {
  if (provider === 'cpu') return { provider: 'onnx-cpu', because: 'the config asks for it' }
  if (provider !== 'auto' && provider !== 'native') {
    throw new Error(`engine.provider: unknown kind '${provider}'; known are auto, native, cpu`)
  }
  const fault = nativeFault(kernels, sizes)
  if (fault === undefined) return { provider: 'native', because: (fastNetwork() as NetworkForm).name }
  if (provider === 'native') throw new Error(`engine.provider is native, but ${fault}; auto takes ONNX Runtime then`)
  return { provider: 'onnx-cpu', because: fault }
}

function nativeFault(kernels: ProviderWish['kernels'], sizes: Sizes): string | undefined {
  if (kernels === 'fallback') return 'engine.kernels is fallback'
  if (networkForms().length === 0) return 'there are no native kernels'
  if (fastNetwork() === undefined) return 'the native forward pass has no form for this processor (AVX-512 with VNNI)'
  return networkFault(sizes)
}

/**
 * What a chain's root says of the provider. The number is raised when the bits that the forward pass of kernels/ gives
 * change.
 */
export function arithmeticOf(provider: Provider): string {
  return provider === 'native' ? 'native-1' : 'onnx'
}

export interface OpenProviderOptions {
  readonly provider: Provider
  /** The folder of the imported model. */
  readonly directory: string
  readonly layout: KvLayout
  readonly vocabSize: number
  readonly threads: number
  /** False: the runner takes no trees of branches. */
  readonly trees: boolean
  /** Default: the fastest that runs here. */
  readonly form?: NetworkForm
}

/** @throws Error when a file cannot be read, or the provider cannot be. */
export async function openProvider(options: OpenProviderOptions): Promise<Runner> {
  const { provider, directory, layout, vocabSize, threads, trees } = options
  if (provider === 'onnx-cpu') {
    // Loaded for those who use it: the library alone takes tens of megabytes.
    const { openRunner } = await import('./engine/runner.js')
    return await openRunner({ directory, layout, vocabSize, decodeRows: DECODE_ROWS, threads, provider: 'cpu', trees })
  }
  const form = options.form ?? fastNetwork()
  if (form === undefined) throw new Error('this processor has no form of the native forward pass')
  const network = await loadNetwork(directory, { form, threads, kv: layout.dtype })
  return networkRunner(network, { layout, vocabSize, decodeRows: DECODE_ROWS, trees })
}
