/**
 * What came in the last minute, or of a whole recording, in slices of half a second. No DOM.
 *
 * Times are seconds: since 1970, or since a recording began.
 */

import { secondsOf } from "../lib/format.js";
import { EMPTY, afterFrame, int32s, int64s } from "./picture.js";

export const SPAN_S = 60;
const NUM_SLICES = 120;
/** Most pictures of a slice; a scheduler makes five in half a second. */
const NUM_MOMENTS = 10;
/** A clock that is off by more was set, or one of them has not counted a machine's sleep. */
const JUMP_S = 10;

export class History {
  recording = null;
  /** By scheduler, as of the last message. */
  pictures = new Map();
  /** Time of the last message. */
  now = 0;
  /** The oldest first: steps, events, moments (pictures and their times), and pictures at the end. */
  slices = [];
  sliceS = SPAN_S / NUM_SLICES;
  /** By scheduler: what to add to its clock. */
  offsets = new Map();

  /** The time axis at a time of the clock: where it begins and ends. */
  axisAt(clockS) {
    if (this.recording) return { from: 0, to: this.recording.endsS };
    const to = Math.max(this.now, clockS);
    return { from: to - SPAN_S, to };
  }

  /** The oldest time that can be shown. */
  get oldest() {
    return this.slices.find(({ moments }) => moments.length)?.moments[0].at ?? 0;
  }

  /** Takes a message of `Watch`, at a time in seconds since 1970. */
  add(message, clockS) {
    const { scheduler, frame, recording } = message;
    if (recording) this.#begin(recording);
    else if (this.now - clockS > JUMP_S) Object.assign(this, { slices: [], now: 0 });
    const before = this.pictures.get(scheduler);
    if (!before && frame && !frame.isFull) return; // its beginning went to another tab
    this.now = this.#timeOf(message, clockS);
    const after = frame ? afterFrame(before, frame) : this.#lost(before, message);
    const slice = this.#slice(this.now, !frame?.isFull);
    const texts = frame?.isFull && !before?.lost ? [] : changesOf(before, after);
    slice.events.push(...texts.map((text) => ({ at: this.now, scheduler, text })));
    for (const { number, steps = [], numOmittedSteps = 0 } of frame?.workers ?? []) {
      const offset = this.now - after.at;
      slice.steps.push(...steps.map((one) => stepOf(one, `${scheduler} ${number}`, offset)));
      slice.numOmitted += numOmittedSteps;
    }
    this.pictures = new Map(this.pictures).set(scheduler, after);
    this.#keep(slice);
  }

  /** Returns the schedulers' pictures at a time. */
  picturesAt(at) {
    const slice = this.slices.findLast(({ moments }) => moments[0]?.at <= at);
    return slice?.moments.findLast((one) => one.at <= at).pictures ?? new Map();
  }

  /** Returns this as it is now, whatever comes. */
  frozen() {
    return Object.assign(new History(), this, { slices: [...this.slices] });
  }

  /** Returns what another tab needs to go on from here. */
  get known() {
    const { recording, sliceS, pictures, now, offsets } = this;
    return { recording, sliceS, pictures, now, offsets };
  }

  /** Goes on from what another tab knows. */
  goOnFrom(known) {
    Object.assign(this, known);
    this.#keep(this.#slice(this.now, false));
  }

  #begin({ beginsAtNs, endsAtNs }) {
    const [beginsS, endsS] = [secondsOf(beginsAtNs), secondsOf(endsAtNs)];
    this.recording = { beginsS, endsS: Math.max(1, endsS - beginsS) };
    this.sliceS = Math.max(SPAN_S, this.recording.endsS) / NUM_SLICES;
  }

  /** Schedulers' clocks begin anywhere; the frame that came fastest says where ours stood then. */
  #timeOf({ scheduler, frame }, clockS) {
    if (!frame) this.offsets.delete(scheduler);
    if (!frame) return this.recording ? this.now : Math.max(this.now, clockS);
    const atS = secondsOf(frame.atNs);
    const fresh = clockS - atS;
    const known = this.offsets.get(scheduler) ?? Infinity;
    const own = fresh > known + JUMP_S ? fresh : Math.min(known, fresh);
    const offset = this.recording ? -this.recording.beginsS : own;
    this.offsets.set(scheduler, offset);
    return Math.max(this.now, atS + offset);
  }

  #lost(before, { lost, recording }) {
    return { ...(recording ? before : EMPTY), lost };
  }

  /** Returns the slice of a time, which may be the next one; drops those before the span. */
  #slice(at, isKnown) {
    const index = Math.floor(at / this.sliceS);
    const last = this.slices.at(-1)?.index ?? index - 1;
    for (let next = Math.max(last + 1, index - NUM_SLICES); next <= index; next++) {
      const parts = { moments: [], steps: [], numOmitted: 0, events: [], pictures: this.pictures };
      this.slices.push({ index: next, isKnown, ...parts });
    }
    while (this.slices[0].index < index - NUM_SLICES) this.slices.shift();
    this.slices.at(-1).isKnown &&= isKnown;
    return this.slices.at(-1);
  }

  /** Keeps the pictures of now; of two that are close to the one before, the later. */
  #keep(slice) {
    const [before, last] = slice.moments.slice(-2);
    if (last && last.at - before.at < this.sliceS / NUM_MOMENTS) slice.moments.pop();
    slice.moments.push({ at: this.now, pictures: this.pictures });
    slice.pictures = this.pictures;
  }
}

function stepOf(step, worker, offset) {
  const { stepId, answeredAtNs, durationNs, numTokens = 0, numDecodes = 0 } = step;
  return {
    worker,
    id: Number(stepId),
    at: secondsOf(answeredAtNs) + offset,
    seconds: secondsOf(durationNs),
    numTokens,
    numDecodes,
    chunks: int32s(step.prefillNumTokens),
    firstTokensS: int64s(step.firstTokenNs).map(secondsOf),
    moved: step.numMoved ?? {},
  };
}

/** Says what has happened to a scheduler and its workers between two pictures. */
function changesOf(before, after) {
  if (after.lost) return before?.lost ? [] : [`is lost: ${after.lost}`];
  if (before?.lost) return ["is back"];
  const texts = [];
  for (const [number, { description }] of before.workers) {
    if (!after.workers.has(number)) texts.push(`worker ${description.address} has left`);
  }
  for (const [number, { description }] of after.workers) {
    const known = before.workers.get(number)?.description;
    if (!known) texts.push(`worker ${description.address} has joined`);
    else if (description.isDraining && !known.isDraining) {
      texts.push(`worker ${description.address} drains`);
    }
  }
  return texts;
}
