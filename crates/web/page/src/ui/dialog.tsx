// Modal dialogs, popovers, and the state of which one is open.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { IconButton } from "./icons";

export type DialogName = "settings" | "help" | "machine" | undefined;

export const dialog = signal<DialogName>(undefined);

/** A modal dialog; the browser keeps the focus in it and gives it back. */
export function Dialog(props: { title: string; onClose: () => void; class?: string; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => {
    const element = ref.current;
    element?.showModal();
    return () => element?.close();
  }, []);
  const onClick = (event: MouseEvent) => {
    // A click on the backdrop hits the element itself, whose content fills it.
    if (event.target === ref.current) props.onClose();
  };
  return (
    <dialog
      ref={ref}
      class={`dialog ${props.class ?? ""}`}
      aria-labelledby={title}
      onClick={onClick}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      <div class="dialog-body">
        <header class="dialog-head">
          <h2 id={title}>{props.title}</h2>
          <IconButton icon="close" label="Close" onClick={props.onClose} />
        </header>
        {props.children}
      </div>
    </dialog>
  );
}

/** A question that must be confirmed. */
export function Confirm(props: { title: string; text: string; action: string; onAnswer: (isYes: boolean) => void }) {
  return (
    <Dialog title={props.title} class="small" onClose={() => props.onAnswer(false)}>
      <p>{props.text}</p>
      <div class="dialog-actions">
        <button type="button" class="button" onClick={() => props.onAnswer(false)}>Cancel</button>
        <button type="button" class="button danger" onClick={() => props.onAnswer(true)}>{props.action}</button>
      </div>
    </Dialog>
  );
}

/** A button with a panel below it, which a click elsewhere or Escape closes. */
export function Popover(props: {
  label: string;
  button: ComponentChildren;
  class?: string;
  onOpen?: () => void;
  children: (close: () => void) => ComponentChildren;
}) {
  const [isOpen, setOpen] = useState(false);
  const ref = useRef<HTMLDivElement>(null);
  const panel = useId();
  useEffect(() => {
    if (!isOpen) return;
    const onPointer = (event: Event) => {
      if (!ref.current?.contains(event.target as Node)) setOpen(false);
    };
    // The focus may be elsewhere: a button of the panel that was pressed may be gone.
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      setOpen(false);
      ref.current?.querySelector("button")?.focus();
    };
    addEventListener("pointerdown", onPointer);
    addEventListener("keydown", onKeyDown, { capture: true });
    return () => {
      removeEventListener("pointerdown", onPointer);
      removeEventListener("keydown", onKeyDown, { capture: true });
    };
  }, [isOpen]);
  const toggle = () => {
    if (!isOpen) props.onOpen?.();
    setOpen(!isOpen);
  };
  return (
    <div class={`popover ${props.class ?? ""}`} ref={ref}>
      <button type="button" class="popover-button" aria-expanded={isOpen} aria-controls={panel} aria-label={props.label} onClick={toggle}>
        {props.button}
      </button>
      {isOpen && (
        <div class="popover-panel" id={panel} role="group" aria-label={props.label}>
          {props.children(() => setOpen(false))}
        </div>
      )}
    </div>
  );
}
