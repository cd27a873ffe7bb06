// Rendered Markdown of one text.

import { useMemo, useRef } from "preact/hooks";

import { MarkdownBlocks, type Block } from "../markdown";
import { copy } from "../notices";

/** Copies the code of a block whose button was pressed. */
function onClick(event: Event) {
  const button = (event.target as Element).closest("[data-copy]");
  const code = button?.closest(".code")?.querySelector("code");
  if (code) void copy(code.textContent ?? "");
}

export function MarkdownView({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const state = useRef<MarkdownBlocks | undefined>(undefined);
  state.current ??= new MarkdownBlocks();
  const blocks = useMemo(() => state.current?.update(text, isGrowing) ?? [], [text, isGrowing]);
  return (
    <div class="markdown" onClick={onClick}>
      {blocks.map((block) => <BlockView key={block.key} block={block} />)}
    </div>
  );
}

function BlockView({ block }: { block: Block }) {
  // The HTML is sanitized; an equal text leaves the element as it is.
  return <div dir="auto" dangerouslySetInnerHTML={{ __html: block.html }} />;
}
