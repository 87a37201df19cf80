// What both pictures are made of: elements of SVG, margins, and numbers for axes.

export const MARGIN = { right: 12, top: 10, bottom: 30 };
export const LETTER = 8; // pixels of a digit, at most
export const MINUS = "\u2212";

export function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

// Round numbers between low and high, about as many as asked for, each with its label.
export function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const digits = Math.min(15, Math.max(1, Math.ceil(Math.log10(largest / step)) + 1));
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) {
    const value = i * step, rounded = Number(value.toPrecision(digits));
    const small = rounded ? rounded.toExponential() : "0";
    const text = decimals > 4 ? small : largest >= 1e9 ? String(rounded) : value.toFixed(decimals);
    found.push([value, text.replace(/^-(0\.?0*)$/, "$1").replace("-", MINUS)]);
  }
  return found;
}

export const widest = (found) => Math.max(0, ...found.map(([, text]) => text.length)) * LETTER;
