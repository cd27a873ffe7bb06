// Icons of 24 × 24 units, drawn with strokes.

const PATHS = {
  plus: "M12 5v14M5 12h14",
  chat: "M21 12a8 8 0 0 1-8 8H4l2-3a8 8 0 1 1 15-5z",
  mic: "M12 3a3 3 0 0 0-3 3v6a3 3 0 0 0 6 0V6a3 3 0 0 0-3-3zM5 11v1a7 7 0 0 0 14 0v-1M12 19v3",
  wave: "M3 12h2M7 7v10M11 4v16M15 8v8M19 10v4",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4",
  gauge: "M4 18a9 9 0 1 1 16 0M12 14l4-5",
  help: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 17v.01",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16v4zM13 7l4 4",
  retry: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v6M14 11v6",
  left: "M15 6l-6 6 6 6",
  right: "M9 6l6 6-6 6",
  down: "M6 9l6 6 6-6",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  clip: "M20 11l-8 8a5 5 0 0 1-7-7l8-8a3.3 3.3 0 0 1 5 5l-8 8a1.7 1.7 0 0 1-2.500-2.500l7-7",
  check: "M5 12l5 5 9-10",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  play: "M8 5l11 7-11 7z",
  tool: "M14 6a4 4 0 0 1 5-1l-3 3 1 2 2 1 3-3a4 4 0 0 1-6 5l-7 7-3-3 7-7a4 4 0 0 1 1-4z",
  bulb: "M9 18h6M10 21h4M12 3a6 6 0 0 0-4 10c1 1 1.500 2 1.500 3h5c0-1 .5-2 1.500-3a6 6 0 0 0-4-10z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  folder: "M3 6h6l2 2h10v11H3z",
  live: "M12 10a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM7 7a7 7 0 0 0 0 10M17 7a7 7 0 0 1 0 10",
  users: "M9 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM3 20c0-4 3-6 6-6s6 2 6 6M16 5.500a3 3 0 0 1 0 5M18 14.500c2 1 3 3 3 5.500",
  forward: "M5 5l8 7-8 7zM17 5v14",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function IconButton(props: {
  icon: IconName;
  label: string;
  onClick: () => void;
  class?: string;
  disabled?: boolean;
  pressed?: boolean;
  keys?: string;
}) {
  const { icon, label, onClick, disabled, pressed, keys } = props;
  return (
    <button
      type="button"
      class={`icon-button ${props.class ?? ""}`}
      aria-label={label}
      title={keys ? `${label} (${keys})` : label}
      disabled={disabled}
      aria-pressed={pressed}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
