// Reasoning that a model writes into its answer, between <think> and </think>.

const OPEN = /^\s*<(think|thinking|reasoning)>/;

export interface SplitAnswer {
  reasoning: string;
  text: string;
  /** Whether the reasoning has ended. */
  isClosed: boolean;
}

/** Splits an answer. A template may have opened the tag in the prompt: then the answer has the closing one alone. */
export function splitReasoning(content: string): SplitAnswer {
  const open = OPEN.exec(content);
  if (open) {
    const close = `</${open[1]}>`;
    const end = content.indexOf(close, open[0].length);
    if (end < 0) return { reasoning: content.slice(open[0].length).trim(), text: "", isClosed: false };
    return { reasoning: content.slice(open[0].length, end).trim(), text: content.slice(end + close.length).trimStart(), isClosed: true };
  }
  const end = content.indexOf("</think>");
  // A closing tag within code is text.
  if (end >= 0 && !content.slice(0, end).includes("`")) {
    return { reasoning: content.slice(0, end).trim(), text: content.slice(end + 8).trimStart(), isClosed: true };
  }
  // The start of an opening tag is not shown as text.
  const start = content.trimStart();
  if (start !== "" && "<think>".startsWith(start)) return { reasoning: "", text: "", isClosed: false };
  return { reasoning: "", text: content, isClosed: true };
}
