// Writes ONNX graphs (opset 21 and com.microsoft 1) as protobuf bytes. Invariant: a file holds structure only; every
// tensor of more than a few bytes lies in the weights file beside it, by offset, so that ONNX Runtime maps it, a model
// stays far from protobuf's 2 GB, and several graphs share one set of weights. Knows nothing of models.

import protobuf from 'protobufjs'

/** The subset of onnx.proto3 that a graph of plain operators needs (github.com/onnx/onnx, onnx/onnx.proto3). */
const { root: SCHEMA } = protobuf.parse(
  `
  syntax = "proto3";
  message ModelProto {
    int64 ir_version = 1; string producer_name = 2; GraphProto graph = 7; repeated OperatorSetIdProto opset_import = 8;
  }
  message OperatorSetIdProto { string domain = 1; int64 version = 2; }
  message GraphProto {
    repeated NodeProto node = 1; string name = 2; repeated TensorProto initializer = 5;
    repeated ValueInfoProto input = 11; repeated ValueInfoProto output = 12;
    repeated ValueInfoProto value_info = 13;
  }
  message NodeProto {
    repeated string input = 1; repeated string output = 2; string name = 3; string op_type = 4;
    repeated AttributeProto attribute = 5; string domain = 7;
  }
  message AttributeProto {
    string name = 1; float f = 2; int64 i = 3; bytes s = 4; GraphProto g = 6; repeated int64 ints = 8; int32 type = 20;
  }
  message TensorProto {
    repeated int64 dims = 1; int32 data_type = 2; string name = 8; bytes raw_data = 9;
    repeated StringStringEntryProto external_data = 13; int32 data_location = 14;
  }
  message StringStringEntryProto { string key = 1; string value = 2; }
  message ValueInfoProto { string name = 1; TypeProto type = 2; }
  message TypeProto {
    message Tensor { int32 elem_type = 1; TensorShapeProto shape = 2; }
    Tensor tensor_type = 1;
  }
  message TensorShapeProto {
    message Dimension { int64 dim_value = 1; string dim_param = 2; }
    repeated Dimension dim = 1;
  }`,
  { keepCase: true },
)

const MODEL = SCHEMA.lookupType('ModelProto')

/** TensorProto.DataType of the element types in use. */
const ELEMENT = { float32: 1, uint8: 2, int32: 6, int64: 7, float16: 10 } as const
export type ElementType = keyof typeof ELEMENT

const ATTRIBUTE = { float: 1, int: 2, string: 3, graph: 5, ints: 7 } as const

/** A tensor in the weights file: `bytes` bytes from `offset`. */
export interface StoredTensor {
  readonly name: string
  readonly type: ElementType
  readonly dims: readonly number[]
  readonly offset: number
  readonly bytes: number
}

/** A number is an integer attribute; floats are wrapped by `float`, because JavaScript cannot tell 1.0 from 1. */
export type Attribute = number | string | readonly number[] | { readonly float: number }

export function float(value: number): { readonly float: number } {
  return { float: value }
}

/** A fixed size, or the name of one that each run chooses. */
export type Dimension = number | string

/** A graph under construction. Values are named by strings; an operator returns its (first) output's name. */
export class OnnxGraph {
  readonly #name: string
  readonly #weightsFile: string
  #nodes: object[] = []
  readonly #initializers = new Map<string, object>()
  readonly #inputs: object[] = []
  readonly #outputs: object[] = []
  #shapes: object[] = []
  #unnamed = 0

  /** `weightsFile` is the name, relative to the graph's file, of what StoredTensor offsets point into. */
  constructor(name: string, weightsFile: string) {
    this.#name = name
    this.#weightsFile = weightsFile
  }

  /** An operator of the standard domain with one output. Inputs of '' are absent optional ones. */
  op(kind: string, inputs: readonly string[], attributes: Readonly<Record<string, Attribute>> = {}): string {
    return this.node({ kind, domain: '', inputs, attributes, outputs: [this.fresh(kind)] })
  }

  /** The same from com.microsoft, ONNX Runtime's own operators. */
  contrib(kind: string, inputs: readonly string[], attributes: Readonly<Record<string, Attribute>> = {}): string {
    return this.node({ kind, domain: 'com.microsoft', inputs, attributes, outputs: [this.fresh(kind)] })
  }

  /** An operator with outputs named by the caller; '' leaves an optional one out. Returns the first name. */
  node(node: {
    readonly kind: string
    readonly domain: '' | 'com.microsoft'
    readonly inputs: readonly string[]
    readonly outputs: readonly string[]
    readonly attributes?: Readonly<Record<string, Attribute>>
  }): string {
    this.#nodes.push({
      op_type: node.kind,
      domain: node.domain,
      name: `${node.outputs.find((output) => output !== '') ?? node.kind}`,
      input: node.inputs,
      output: node.outputs,
      attribute: Object.entries(node.attributes ?? {}).map(([name, value]) => attributeProto(name, value)),
    })
    return node.outputs[0] as string
  }

  /**
   * One value, computed by `yes` where `condition` (bool, one element) holds and else by `no`; only that one is run. What
   * they return are names of the same type; they may use every value of the graph around them, and their own stay inside.
   */
  either(condition: string, type: ElementType, yes: () => string, no: () => string): string {
    const attribute = [
      { name: 'then_branch', type: ATTRIBUTE.graph, g: this.#inside('then', type, yes) },
      { name: 'else_branch', type: ATTRIBUTE.graph, g: this.#inside('else', type, no) },
    ]
    const output = this.fresh('If')
    this.#nodes.push({ op_type: 'If', domain: '', name: output, input: [condition], output: [output], attribute })
    return output
  }

  #inside(name: string, type: ElementType, build: () => string): object {
    const [nodes, shapes] = [this.#nodes, this.#shapes]
    this.#nodes = []
    this.#shapes = []
    const result = build()
    const output = [{ name: result, type: { tensor_type: { elem_type: ELEMENT[type] } } }]
    const graph = { name, node: this.#nodes, value_info: this.#shapes, output }
    this.#nodes = nodes
    this.#shapes = shapes
    return graph
  }

  /** `value` cut along `axis` into pieces of the given sizes. */
  split(value: string, sizes: readonly number[], axis: number): string[] {
    const outputs = sizes.map(() => this.fresh('Split'))
    this.node({ kind: 'Split', domain: '', inputs: [value, this.ints(...sizes)], outputs, attributes: { axis } })
    return outputs
  }

  /** A one-dimensional int64 constant inside the graph file; equal ones are one. */
  ints(...values: readonly number[]): string {
    const name = `ints[${values.join(',')}]`
    if (!this.#initializers.has(name)) {
      const raw = new Uint8Array(BigInt64Array.from(values, BigInt).buffer)
      this.#initializers.set(name, { name, data_type: ELEMENT.int64, dims: [values.length], raw_data: raw })
    }
    return name
  }

  /** A tensor of the weights file. The same tensor may be asked for again, also with other `dims` of the same size. */
  weight(tensor: StoredTensor, dims: readonly number[] = tensor.dims): string {
    const name = dims === tensor.dims ? tensor.name : `${tensor.name}[${dims.join(',')}]`
    if (!this.#initializers.has(name)) {
      const place = { location: this.#weightsFile, offset: `${tensor.offset}`, length: `${tensor.bytes}` }
      this.#initializers.set(name, {
        name,
        dims,
        data_type: ELEMENT[tensor.type],
        data_location: 1,
        external_data: Object.entries(place).map(([key, value]) => ({ key, value })),
      })
    }
    return name
  }

  input(name: string, type: ElementType, dims: readonly Dimension[]): string {
    this.#inputs.push(valueProto(name, type, dims))
    return name
  }

  output(name: string, type: ElementType, dims: readonly Dimension[]): void {
    this.#outputs.push(valueProto(name, type, dims))
  }

  /** Says what the runtime can't infer of a value, so that it can give the same memory to values of the same shape. */
  shape(name: string, type: ElementType, dims: readonly Dimension[]): void {
    this.#shapes.push(valueProto(name, type, dims))
  }

  /** The .onnx file's bytes. */
  encode(): Uint8Array {
    return MODEL.encode({
      ir_version: 10,
      producer_name: 'refrain',
      opset_import: [
        { domain: '', version: 21 },
        { domain: 'com.microsoft', version: 1 },
      ],
      graph: {
        name: this.#name,
        node: this.#nodes,
        initializer: [...this.#initializers.values()],
        input: this.#inputs,
        output: this.#outputs,
        value_info: this.#shapes,
      },
    }).finish()
  }

  /** A name that no value has yet. */
  fresh(kind: string): string {
    this.#unnamed += 1
    return `${kind}.${this.#unnamed}`
  }
}

function attributeProto(name: string, value: Attribute): object {
  if (typeof value === 'number') {
    if (!Number.isInteger(value)) throw new TypeError(`attribute ${name} is not an integer: wrap it in float()`)
    return { name, type: ATTRIBUTE.int, i: value }
  }
  if (typeof value === 'string') return { name, type: ATTRIBUTE.string, s: new TextEncoder().encode(value) }
  if ('float' in value) return { name, type: ATTRIBUTE.float, f: value.float }
  return { name, type: ATTRIBUTE.ints, ints: value }
}

function valueProto(name: string, type: ElementType, dims: readonly Dimension[]): object {
  const dim = dims.map((size) => (typeof size === 'number' ? { dim_value: size } : { dim_param: size }))
  return { name, type: { tensor_type: { elem_type: ELEMENT[type], shape: { dim } } } }
}
