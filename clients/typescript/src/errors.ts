/** Failed calls, with what the server says of them. */

import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, RetryInfoSchema } from "./gen/error_details_pb.js";

/** A field that is not valid, and why. */
export interface FieldViolation {
  field: string;
  description: string;
}

/** A call that failed. */
export class RequestError extends Error {
  /** The fields of the request that are not valid. */
  readonly violations: readonly FieldViolation[];
  /** Milliseconds after which the call may be made again; undefined if the server does not say. */
  readonly retryAfterMs: number | undefined;

  constructor(
    /** The status's code, such as Code.InvalidArgument. */
    readonly code: Code,
    error: ConnectError,
  ) {
    super(error.rawMessage, { cause: error });
    this.name = "RequestError";
    this.violations = error
      .findDetails(BadRequestSchema)
      .flatMap((detail) => detail.fieldViolations)
      .map(({ field, description }) => ({ field, description }));
    const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
    this.retryAfterMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  }
}

/** Returns what a call throws in place of any error. */
export function requestError(reason: unknown): RequestError {
  const error = ConnectError.from(reason);
  return new RequestError(error.code, error);
}
