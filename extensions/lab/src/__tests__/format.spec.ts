import * as format from '../format';

const GIB = 2 ** 30;

describe('unknown values', () => {
  it.each([null, undefined, NaN, Infinity])('%p is a dash and never 0', value => {
    expect(format.gib(value)).toBe('–');
    expect(format.reading(value, 'W')).toBe('–');
    expect(format.milliseconds(value)).toBe('–');
    expect(format.fraction(value, GIB)).toBeNull();
    expect(format.fraction(GIB, value)).toBeNull();
  });
  it('keeps zero apart from unknown', () => {
    expect(format.gib(0)).toBe('0.0');
    expect(format.reading(0, '%')).toBe('0 %');
    expect(format.fraction(0, GIB)).toBe(0);
  });
});

it('shows memory as GiB with one decimal', () => {
  expect(format.memory(12.34 * GIB, 20 * GIB)).toBe('12.3 / 20.0 GiB');
  expect(format.memory(null, 20 * GIB)).toBe('– / 20.0 GiB');
});

it('never fills the bar beyond its end', () => {
  // After a forced shrink more may be used than is allowed.
  expect(format.fraction(30 * GIB, 20 * GIB)).toBe(1);
  expect(format.fraction(1, 0)).toBeNull();
});

it.each([
  [null, 'calm'],
  [0, 'calm'],
  [0.849, 'calm'],
  [0.85, 'warn'],
  [0.969, 'warn'],
  [0.97, 'full'],
  [1, 'full']
])('tone of %p is %s', (part, tone) => {
  expect(format.tone(part)).toBe(tone);
});

it('shows prices as they came, without rounding', () => {
  expect(format.price('1.005', 'EUR')).toBe('1.005 EUR/h');
  expect(format.price(null, 'EUR')).toBe('–');
});

it.each([
  [3.24, '3.2 ms'],
  [45.6, '46 ms'],
  [1500, '1.5 s']
])('%p ms is %s', (value, text) => {
  expect(format.milliseconds(value)).toBe(text);
});

it.each([
  ['1/8', 'one eighth'],
  ['1', 'one whole card'],
  ['2', '2 cards'],
  [null, 'unknown share']
])('says %p as %s', (share, words) => {
  expect(format.spokenShare(share)).toBe(words);
});

it.each([
  ['1/4', 'GPU 1/4'],
  ['1', 'Whole GPU'],
  ['2', '2 GPUs']
])('who holds %p reads %s', (share, words) => {
  expect(format.heldShare(share)).toBe(words);
});

describe('times', () => {
  const now = Date.parse('2026-01-01T12:00:00Z');
  it.each([
    ['2026-01-01T11:59:50Z', '10 s ago'],
    ['2026-01-01T11:15:00Z', '45 min ago'],
    ['2025-12-31T10:00:00Z', '26 h ago'],
    ['2025-12-20T12:00:00Z', '12 d ago'],
    ['2026-01-01T12:30:00Z', 'now'],
    [null, 'age unknown'],
    ['soon', 'age unknown']
  ])('%p was %s', (time, text) => {
    expect(format.ago(time, now)).toBe(text);
  });
  it.each([
    ['2026-01-01T12:04:00Z', 'in 4 min'],
    ['2026-01-01T11:58:00Z', 'overdue by 2 min'],
    [null, null],
    ['soon', null]
  ])('%p is due %p', (time, text) => {
    expect(format.due(time, now)).toBe(text);
  });
});

it.each([
  [null, 'unknown'],
  [0, '0 J'],
  [90, '90 J'],
  [3600, '1.00 Wh'],
  [360_000, '100.0 Wh']
])('%p joules are %s', (joules, text) => {
  expect(format.energy(joules)).toBe(text);
});

it.each([
  [null, 'size unknown'],
  [0, '0 B'],
  [400 * 2 ** 20, '400 MiB'],
  [1.5 * 2 ** 30, '1.5 GiB']
])('%p bytes are %s', (bytes, text) => {
  expect(format.size(bytes)).toBe(text);
});

it('says what a grade is worth before what it is called', () => {
  expect(format.gradeMeaning('kernel')).toBe('memory held by the driver or the card itself (grade: kernel)');
  expect(format.gradeMeaning('guarded')).toMatch(/^memory held by .* \(grade: guarded\)$/);
  expect(format.gradeMeaning('advisory')).toMatch(/^held for programs .* \(grade: advisory\)$/);
  expect(format.gradeMeaning('new')).toBe('new');
  expect(format.gradeMeaning(null)).toBe(format.UNKNOWN);
});
