import { ceiling, GAP_MS, History, pieces, WINDOW_MS } from '../history';
import { GIB, telemetry } from './samples';

it('keeps the last minutes and counts a reading once', () => {
  const history = new History();
  for (let second = 0; second < 400; second += 1) {
    const at = new Date(second * 1000).toISOString();
    history.push(telemetry({ at, memory_used_bytes: second * GIB }), second * 1000);
    history.push(telemetry({ at }), second * 1000 + 10);
  }
  const points = history.points('memory');
  expect(points[points.length - 1]).toEqual({ at: 399_000, value: 399 * GIB });
  expect(points.length).toBe((WINDOW_MS + GAP_MS) / 1000 + 1);
});

it('breaks the line where a value is unknown or no reading came', () => {
  const points = [
    { at: 0, value: 1 },
    { at: 1000, value: 0 },
    { at: 2000, value: null },
    { at: 3000, value: 2 },
    { at: 3000 + GAP_MS + 1, value: 3 }
  ];
  expect(pieces(points).map(piece => piece.map(point => point.value))).toEqual([[1, 0], [2], [3]]);
  expect(pieces([{ at: 0, value: null }])).toEqual([]);
});

it('has a scale that holds every reading', () => {
  expect(ceiling([{ at: 0, value: 71 }], 100)).toBe(100);
  expect(ceiling([{ at: 0, value: 612 }], 100)).toBe(650);
  expect(ceiling([{ at: 0, value: null }], 90)).toBe(90);
});
