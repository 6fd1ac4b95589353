/**
 * The frames of the last minute, or of a whole recording, and what was the case at any time in it.
 * No DOM.
 *
 * Copies of the pictures are kept now and then, and the frames between them, so that a picture of
 * the past is a copy and a few frames. Times are seconds: since 1970, or since a recording began.
 */

import { applyFrame, copyOf, emptyPicture, int32s, int64s } from "./picture.js";

export const SPAN_S = 60;
/** Buckets between two copies. */
const COPY_EVERY = 5;
/** Seconds that a paused view keeps what it shows. */
const HOLD_S = 600;
const NUM_BUCKETS = 120;

export class History {
  constructor() {
    this.recording = null;
    /** By scheduler, as of the last frame. */
    this.pictures = new Map();
    /** Messages with the time of each, oldest first. */
    this.entries = [];
    this.steps = [];
    this.events = [];
    /** Sums for charts, by number of the bucket. */
    this.buckets = new Map();
    this.bucketS = SPAN_S / NUM_BUCKETS;
    /** Time from which a paused view needs everything. */
    this.heldFrom = Infinity;
    this._first = 0; // number of the first entry; they count up
    this._copies = [];
    this._offsets = new Map();
    this._cursor = null;
  }

  get now() {
    return this.entries.at(-1)?.at ?? 0;
  }

  /** The time axis at a time of the clock: where it begins and ends. */
  axisAt(clockS) {
    if (this.recording) return { from: 0, to: this.recording.endsS };
    const to = Math.max(this.now, clockS);
    return { from: to - SPAN_S, to };
  }

  /** The oldest time that can be shown. */
  get oldest() {
    return this._copies[0]?.at ?? 0;
  }

  /** Takes a message of `Watch`, at a time in seconds since 1970. */
  add(message, clockS) {
    if (message.recording) this._begin(message);
    const at = this._timeOf(message, clockS);
    if (message.frame?.isFull && this.entries.length) this._miss(at);
    this._note(message, at);
    apply(this.pictures, message);
    this.entries.push({ at, message });
    this._count(message, at);
    if (at - (this._copies.at(-1)?.at ?? -Infinity) >= COPY_EVERY * this.bucketS) this._copy(at);
    this._forget();
  }

  /** Returns the schedulers' pictures at a time. */
  picturesAt(at) {
    if (at >= this.now) return this.pictures;
    const before = this._copies.findLast((one) => one.at <= at) ?? this._copies[0];
    let cursor = this._cursor;
    if (!cursor || cursor.at > at || cursor.index < before.index) {
      cursor = { index: before.index, pictures: copies(before.pictures) };
    }
    while (this.entries[cursor.index - this._first]?.at <= at) {
      apply(cursor.pictures, this.entries[cursor.index++ - this._first].message);
    }
    this._cursor = { ...cursor, at };
    return cursor.pictures;
  }

  /** Returns all that another history needs to go on from here. */
  dump() {
    const [{ at, pictures, index }] = this._copies;
    const entries = this.entries.slice(index - this._first);
    return { at, pictures, entries, offsets: this._offsets };
  }

  /** Takes the place of an empty history: what `dump` has returned. */
  static from({ at, pictures, entries, offsets }) {
    const history = new History();
    history.pictures = copies(pictures);
    history._copy(at);
    for (const { at: clockS, message } of entries) history.add(message, clockS);
    history._offsets = offsets;
    return history;
  }

  _begin({ recording }) {
    if (this.recording) return;
    const beginsNs = Number(recording.beginsAtNs);
    const endsS = Math.max(1, (Number(recording.endsAtNs) - beginsNs) / 1e9);
    this.recording = { beginsNs, endsS };
    this.bucketS = Math.max(0.5, endsS / NUM_BUCKETS);
  }

  /** Schedulers' clocks begin anywhere; the frame that came fastest says where ours stood then. */
  _timeOf({ scheduler, frame }, clockS) {
    if (this.recording && frame) return (Number(frame.atNs) - this.recording.beginsNs) / 1e9;
    if (this.recording) return this.now;
    if (!frame) {
      this._offsets.delete(scheduler);
      return Math.max(this.now, clockS);
    }
    const offset = clockS - Number(frame.atNs) / 1e9;
    const known = this._offsets.get(scheduler) ?? Infinity;
    this._offsets.set(scheduler, Math.min(known, offset));
    return Math.max(this.now, Number(frame.atNs) / 1e9 + this._offsets.get(scheduler));
  }

  /** Notes what happens to schedulers and workers, in words. */
  _note({ scheduler, frame, lost }, at) {
    const note = (text) => this.events.push({ at, text });
    const picture = this.pictures.get(scheduler);
    if (!frame) {
      const what = this.recording ? "the recording breaks off" : `scheduler ${scheduler} is lost`;
      if (!picture?.lost) note(`${what}: ${lost}`);
      return;
    }
    if (picture?.lost) note(`scheduler ${scheduler} is back`);
    if (!picture || frame.isFull) return;
    const addressOf = (number) => picture.workers.get(number)?.description.address;
    for (const number of frame.leftWorkers ?? []) note(`worker ${addressOf(number)} has left`);
    for (const { number, description } of frame.workers ?? []) {
      const known = picture.workers.get(number)?.description;
      if (!description) continue;
      if (!known) note(`worker ${description.address} has joined`);
      else if (description.isDraining && !known.isDraining) note(`worker ${known.address} drains`);
    }
  }

  _count({ scheduler, frame }, at) {
    const offset = frame ? at - Number(frame.atNs) / 1e9 : 0;
    for (const { number, steps, numOmittedSteps } of frame?.workers ?? []) {
      for (const one of steps ?? []) this._step(one, `${scheduler} ${number}`, offset);
      if (numOmittedSteps) this._bucket(at).numOmitted += numOmittedSteps;
    }
    this._bucket(at).requests = requestCounts(this.pictures);
  }

  _step(one, worker, offset) {
    const at = Number(one.answeredAtNs) / 1e9 + offset;
    const { numTokens = 0, numDecodes = 0 } = one;
    const chunks = int32s(one.prefillNumTokens);
    const firstTokensS = int64s(one.firstTokenNs).map((ns) => ns / 1e9);
    const seconds = Number(one.durationNs ?? 0) / 1e9;
    const step = { worker, id: Number(one.stepId), at, seconds, numTokens, numDecodes, chunks };
    this.steps.push({ ...step, firstTokensS, moved: one.numMoved ?? {} });
    const bucket = this._bucket(at);
    bucket.numSteps++;
    bucket.generated += numDecodes + firstTokensS.length;
    bucket.prompt += numTokens - numDecodes;
    bucket.firstTokensS.push(...firstTokensS);
    if (numDecodes) bucket.gaps.push([seconds, numDecodes]);
  }

  /** Notes that what was between the last entry and a full picture is not known. */
  _miss(at) {
    for (let time = this.now; time < at; time += this.bucketS) this._bucket(time).row = {};
  }

  _bucket(at) {
    const index = Math.floor(at / this.bucketS);
    if (!this.buckets.has(index)) {
      const sums = { generated: 0, prompt: 0, numSteps: 0, numOmitted: 0 };
      this.buckets.set(index, { ...sums, firstTokensS: [], gaps: [], requests: null });
    }
    return this.buckets.get(index);
  }

  _copy(at) {
    const index = this._first + this.entries.length;
    this._copies.push({ at, index, pictures: copies(this.pictures) });
  }

  /** Drops what is older than the span, from one copy to the next. */
  _forget() {
    if (this.recording) return;
    const held = Math.max(this.heldFrom, this.now - HOLD_S);
    const from = Math.min(this.now - SPAN_S, held);
    while (this._copies.length > 1 && this._copies[1].at <= from) {
      this._copies.shift();
      const { index } = this._copies[0];
      this.entries.splice(0, index - this._first);
      this._first = index;
    }
    this.steps = this.steps.filter((one) => one.at >= from);
    this.events = this.events.filter((one) => one.at >= from);
    for (const index of this.buckets.keys()) {
      if ((index + 1) * this.bucketS < from) this.buckets.delete(index);
    }
  }
}

function apply(pictures, { scheduler, frame, lost = "", recording }) {
  const picture = pictures.get(scheduler) ?? emptyPicture();
  pictures.set(scheduler, picture);
  if (frame) applyFrame(picture, frame);
  else Object.assign(picture, recording ? {} : emptyPicture(), { lost });
}

function copies(pictures) {
  return new Map([...pictures].map(([name, one]) => [name, copyOf(one)]));
}

/** Returns how many requests wait, load, run and are swapped, of all schedulers. */
export function requestCounts(pictures) {
  const counts = { waiting: 0, loading: 0, running: 0, swapped: 0 };
  for (const { numWaiting, workers } of pictures.values()) {
    counts.waiting += numWaiting;
    for (const { sequences } of workers.values()) {
      const counted = [...sequences.values()].filter(({ state }) => state in counts);
      const states = new Map(counted.map((one) => [one.requestNumber, one.state]));
      for (const state of states.values()) counts[state]++;
    }
  }
  return counts;
}
