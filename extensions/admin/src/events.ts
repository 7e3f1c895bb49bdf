/** Server-sent events over fetch, which unlike EventSource can send the page's header and see why it was refused. */

export interface ServerEvent {
  kind: string;
  data: string;
  id: string | null;
}

/** Takes text as it comes, and gives the events that are whole. */
export class Parser {
  push(text: string): ServerEvent[] {
    this.rest += text;
    const found: ServerEvent[] = [];
    for (;;) {
      const end = this.rest.indexOf('\n\n', this.looked);
      if (end < 0) {
        // A long event comes in many pieces: what was looked through is not looked through again.
        this.looked = Math.max(0, this.rest.length - 1);
        return found;
      }
      const event = parsed(this.rest.slice(0, end));
      this.rest = this.rest.slice(end + 2);
      this.looked = 0;
      if (event) {
        found.push(event);
      }
    }
  }

  private rest = '';
  private looked = 0;
}

function parsed(block: string): ServerEvent | null {
  let kind = 'message';
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split('\n')) {
    const colon = line.indexOf(':');
    const value = line.slice(colon + 1).replace(/^ /, '');
    switch (line.slice(0, colon)) {
      case 'event':
        kind = value;
        break;
      case 'id':
        id = value;
        break;
      case 'data':
        data.push(value);
    }
  }
  return data.length ? { kind, id, data: data.join('\n') } : null;
}

/** Milliseconds to wait before try `count` (1, 2, ...), with chance in it so that not all pages come back at once. */
export function pause(count: number, chance: number): number {
  return Math.min(15_000, 1000 * 2 ** (count - 1)) * (0.75 + chance / 2);
}
