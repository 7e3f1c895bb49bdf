/** Live charts on canvases: one timer and one animation frame for all of them, none while nobody looks. */

import * as React from 'react';

import { History, Metric, pieces, WINDOW_MS } from './history';

const HEIGHT = 44;

export interface Scale {
  top: number;
  /** A line across, such as the memory allowed. */
  mark?: number | null;
}

/** Draws what is registered whenever something new arrived, or time has moved by half a pixel. */
export class Painter {
  constructor(private readonly now: () => number = Date.now) {}

  add(draw: (now: number) => void, width: () => number): () => void {
    const entry = { draw, width };
    this.entries.add(entry);
    this.wake();
    return () => {
      this.entries.delete(entry);
      this.rest(this.running && this.entries.size > 0);
    };
  }

  /** Whether anybody can see the charts. */
  set visible(visible: boolean) {
    this.rest(visible);
    if (visible) {
      this.wake();
    }
  }

  /** Draw at the next frame. */
  wake(): void {
    if (this.running && !this.frame && this.entries.size) {
      this.frame = window.requestAnimationFrame(this.paint);
    }
  }

  private paint = (): void => {
    this.frame = 0;
    window.clearTimeout(this.timer);
    const now = this.now();
    let widest = 1;
    for (const { draw, width } of this.entries) {
      draw(now);
      widest = Math.max(widest, width());
    }
    // Between readings the lines move on by themselves, half a pixel of the screen at a time.
    const pause = Math.max(50, WINDOW_MS / (2 * widest * (window.devicePixelRatio || 1)));
    this.timer = window.setTimeout(() => this.wake(), pause);
  };

  private rest(running: boolean): void {
    this.running = running;
    if (!running) {
      window.cancelAnimationFrame(this.frame);
      window.clearTimeout(this.timer);
      this.frame = 0;
    }
  }

  private entries = new Set<{ draw: (now: number) => void; width: () => number }>();
  private running = false;
  private frame = 0;
  private timer = 0;
}

/** One metric over the last minutes. The canvas says nothing to a screen reader that its label does not. */
export function Chart(props: {
  history: History;
  painter: Painter;
  metric: Metric;
  scale: Scale;
  label: string;
}): React.JSX.Element {
  const canvas = React.useRef<HTMLCanvasElement>(null);
  const latest = React.useRef(props);
  latest.current = props;
  React.useEffect(
    () =>
      props.painter.add(
        now => canvas.current && draw(canvas.current, latest.current, now),
        () => canvas.current?.clientWidth ?? 0
      ),
    [props.painter]
  );
  React.useEffect(() => props.painter.wake());
  return <canvas ref={canvas} className="jp-gpu-chart" role="img" aria-label={props.label} />;
}

function draw(
  canvas: HTMLCanvasElement,
  { history, metric, scale }: { history: History; metric: Metric; scale: Scale },
  now: number
): void {
  const context = canvas.getContext('2d');
  const width = canvas.clientWidth;
  if (!context || !width) {
    return;
  }
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(HEIGHT * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
  }
  const style = window.getComputedStyle(canvas);
  const x = (at: number): number => width * (1 - (now - at) / WINDOW_MS);
  const y = (value: number): number =>
    HEIGHT - 1.5 - (HEIGHT - 3) * Math.min(1, Math.max(0, value / (scale.top || 1)));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, HEIGHT);
  context.strokeStyle = style.getPropertyValue('--gpu-grid');
  context.lineWidth = 1;
  for (let minute = 1; minute < WINDOW_MS / 60_000; minute += 1) {
    const at = Math.round(width * (1 - (minute * 60_000) / WINDOW_MS)) + 0.5;
    line(context, at, 0, at, HEIGHT);
  }
  if (scale.mark) {
    context.setLineDash([4, 3]);
    context.strokeStyle = style.getPropertyValue('--gpu-mark');
    line(context, 0, y(scale.mark), width, y(scale.mark));
    context.setLineDash([]);
  }
  context.strokeStyle = context.fillStyle = style.getPropertyValue('--gpu-line');
  context.lineJoin = 'round';
  context.lineWidth = 1.5;
  for (const piece of pieces(history.points(metric))) {
    const first = piece[0]!;
    const last = piece[piece.length - 1]!;
    // The newest value holds until the next reading.
    const end = now - last.at < 2_000 ? now : last.at;
    context.beginPath();
    context.moveTo(x(first.at), y(first.value));
    for (const point of piece) {
      context.lineTo(x(point.at), y(point.value));
    }
    context.lineTo(Math.max(x(end), x(first.at) + 1.5), y(last.value));
    context.stroke();
    context.lineTo(Math.max(x(end), x(first.at) + 1.5), HEIGHT);
    context.lineTo(x(first.at), HEIGHT);
    context.globalAlpha = 0.14;
    context.fill();
    context.globalAlpha = 1;
  }
}

function line(context: CanvasRenderingContext2D, x1: number, y1: number, x2: number, y2: number): void {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
