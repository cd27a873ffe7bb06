// Markdown of answers as sanitized HTML, block by block: a finished block is rendered once.

import DOMPurify from "dompurify";
import { Lexer, Marked, type Token, type Tokens } from "marked";

import { highlight } from "./highlight";

export interface Block {
  key: number;
  html: string;
}

const SCHEMES = /^(https?:|mailto:)/i;
const IMAGES = /^data:image\/(png|jpeg|gif|webp|avif);base64,/i;
/** Characters of code above which it is not highlighted. */
const MAX_HIGHLIGHTED = 50_000;
/** Characters and delimiters of a paragraph above which it is plain text: the parser takes a time that is cubic in them. */
const MAX_INLINE = 5000;
const MAX_DELIMITERS = 300;

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // HTML of a model is text.
    html: ({ text }) => escapeHtml(text),
    code: codeHtml,
    link({ href, tokens }) {
      const text = this.parser.parseInline(tokens);
      return SCHEMES.test(href) ? `<a href="${escapeHtml(href)}">${text}</a>` : text;
    },
    // An image of another origin would tell it what is read here.
    image({ href, text }) {
      const alt = escapeHtml(text || "image");
      if (IMAGES.test(href)) return `<img src="${escapeHtml(href)}" alt="${alt}">`;
      return SCHEMES.test(href) ? `<a href="${escapeHtml(href)}">${alt}</a>` : alt;
    },
    table(token) {
      const row = (cells: Tokens.TableCell[], tag: string) => {
        const cell = (one: Tokens.TableCell) => {
          const align = one.align ? ` align="${one.align}"` : "";
          return `<${tag}${align}>${this.parser.parseInline(one.tokens)}</${tag}>`;
        };
        return `<tr>${cells.map(cell).join("")}</tr>`;
      };
      const body = token.rows.map((cells) => row(cells, "td")).join("");
      const head = row(token.header, "th");
      return `<div class="table" tabindex="0" role="region" aria-label="Table"><table><thead>${head}</thead><tbody>${body}</tbody></table></div>`;
    },
  },
});

/** A lexer whose time is bounded: a model that repeats itself writes thousands of delimiters. */
class BoundedLexer extends Lexer {
  override inlineTokens(source: string, tokens: Token[] = []): Token[] {
    const isTooLong = source.length > MAX_INLINE || (source.match(/[*_~`[\]<]/g)?.length ?? 0) > MAX_DELIMITERS;
    if (!isTooLong) return super.inlineTokens(source, tokens);
    tokens.push({ type: "text", raw: source, text: source, escaped: false });
    return tokens;
  }
}

/** Blocks of a text; one that is nested too deeply is plain text. */
function lex(text: string): Token[] {
  try {
    return new BoundedLexer(marked.defaults).lex(text);
  } catch {
    return [{ type: "text", raw: text, text, escaped: false }];
  }
}

function htmlOf(tokens: Token[]): string {
  try {
    return sanitize(marked.parser(tokens));
  } catch {
    return `<p>${escapeHtml(tokens.map((token) => token.raw).join(""))}</p>`;
  }
}

function codeHtml({ text, lang }: Tokens.Code): string {
  const language = /^[\w+#.-]{1,30}/.exec(lang ?? "")?.[0] ?? "";
  const code = text.length <= MAX_HIGHLIGHTED ? highlight(text, language) : undefined;
  return (
    `<div class="code" dir="ltr"><div class="code-head"><span>${escapeHtml(language || "text")}</span>` +
    `<button type="button" data-copy="code">Copy</button></div>` +
    `<pre tabindex="0"><code>${code ?? escapeHtml(text)}</code></pre></div>`
  );
}

export function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

function sanitize(html: string): string {
  return purify.sanitize(html, {
    ALLOWED_TAGS: [
      "a", "b", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "input",
      "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
    ],
    ALLOWED_ATTR: [
      "align", "alt", "aria-label", "checked", "class", "data-copy", "dir", "disabled", "href", "rel", "role", "src", "start", "tabindex",
      "target", "type",
    ],
    ALLOW_DATA_ATTR: false,
    ALLOW_UNKNOWN_PROTOCOLS: false,
  });
}

/** The blocks of a text that grows at its end. */
export class MarkdownBlocks {
  private finished: Block[] = [];
  /** Text of the finished blocks. */
  private prefix = "";
  /** HTML by source, so that the last pass renders only what changed. */
  private readonly cache = new Map<string, string>();

  update(text: string, isGrowing: boolean): Block[] {
    if (!isGrowing || !text.startsWith(this.prefix)) {
      this.finished = [];
      this.prefix = "";
    }
    const tokens = lex(text.slice(this.prefix.length));
    const isBlock = ({ type }: Token) => type !== "space" && type !== "def";
    // The last block may still change.
    const open = isGrowing ? tokens.findLast(isBlock) : undefined;
    for (const token of tokens) {
      if (token === open) break;
      if (isBlock(token)) this.finished.push({ key: this.finished.length, html: this.render(token, isGrowing) });
      // The lexer replaces tabs and line ends in `raw`, so that its length is that of the source only without them.
      this.prefix += token.raw;
    }
    if (!text.startsWith(this.prefix)) {
      const all = { key: 0, html: htmlOf(lex(text)) };
      this.finished = [];
      this.prefix = "";
      return [all];
    }
    if (!isGrowing) this.cache.clear();
    if (!open) return this.finished.slice();
    return [...this.finished, { key: this.finished.length, html: htmlOf([open]) }];
  }

  private render(token: Token, isGrowing: boolean): string {
    const known = this.cache.get(token.raw);
    if (known !== undefined) return known;
    const html = htmlOf([token]);
    if (isGrowing) this.cache.set(token.raw, html);
    return html;
  }
}
