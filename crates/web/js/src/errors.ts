/** Errors of the package. */

/** Fields of an error as the server and the engine send them. */
export interface ErrorFields {
  /** HTTP status that `stonechat serve` would send, or that a download got. */
  status: number;
  /** Kind, such as `invalid_request_error`, `insufficient_memory_error`, `download_error` or `worker_error`. */
  type: string;
  /** Name of the option or field that is wrong. */
  param?: string | undefined;
}

/**
 * Error of a load or a request.
 *
 * A cancelled call does not end with this class: it rejects with the reason of its `AbortSignal`.
 */
export class StonechatError extends Error implements ErrorFields {
  override readonly name = "StonechatError";
  readonly status: number;
  readonly type: string;
  readonly param: string | undefined;

  constructor(message: string, fields: ErrorFields, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.status = fields.status;
    this.type = fields.type;
    this.param = fields.param;
  }
}

/** Error in the form that `postMessage` carries. @internal */
export interface WireError extends ErrorFields {
  message: string;
}

/** Error 400 of one option. @internal */
export function invalid(param: string, expected: string, got: unknown): StonechatError {
  return new StonechatError(`\`${param}\`: expected ${expected}, got ${show(got)}`, {
    status: 400,
    type: "invalid_request_error",
    param,
  });
}

/** Error 501 of something that this browser, binary or model lacks. @internal */
export function unsupported(message: string, param?: string): StonechatError {
  return new StonechatError(message, { status: 501, type: "not_supported_error", param });
}

/** Error 507 of a model that does not fit. @internal */
export function tooLarge(message: string): StonechatError {
  return new StonechatError(message, { status: 507, type: "insufficient_memory_error" });
}

/** Error of a worker that has ended. @internal */
export function dead(message: string): StonechatError {
  return new StonechatError(message, { status: 500, type: "worker_error" });
}

/** Error of a download. @internal */
export function failedDownload(message: string, status = 502, cause?: unknown): StonechatError {
  return new StonechatError(message, { status, type: "download_error" }, cause);
}

/** Any thrown value as fields that `postMessage` can carry. @internal */
export function toWire(thrown: unknown): WireError {
  const error = thrown as Partial<WireError> | null | undefined;
  const message = typeof error?.message === "string" ? error.message : String(thrown);
  const status = typeof error?.status === "number" ? error.status : 500;
  const type = typeof error?.type === "string" ? error.type : "server_error";
  return { message, status, type, param: typeof error?.param === "string" ? error.param : undefined };
}

/** Error of the fields that `postMessage` carried. @internal */
export function fromWire({ message, ...fields }: WireError): StonechatError {
  return new StonechatError(message, fields);
}

/** Whether a thrown value says that an `AbortSignal` was used. @internal */
export function isAbort(thrown: unknown): boolean {
  return (thrown as { name?: unknown } | null | undefined)?.name === "AbortError";
}

/** Refuses properties of `options` that are not in `names`. @internal */
export function checkNames(what: string, options: object, names: readonly string[]): void {
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined && !names.includes(name)) {
      throw invalid(name, `one of the options of ${what} (${names.join(", ")})`, "an unknown option");
    }
  }
}

/** Bytes as MiB with one digit. @internal */
export function mib(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

function show(value: unknown): string {
  if (typeof value === "string") {
    return value.length > 80 ? `\`${value.slice(0, 80)}…\`` : `\`${value}\``;
  }
  return typeof value === "object" && value !== null ? value.constructor?.name ?? "an object" : String(value);
}
