// Sets the theme before anything is painted: the remembered choice, else the system's.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try {
      return localStorage.getItem("surgetank.theme");
    } catch {
      return null; // storage is off: follow the system
    }
  };
  const apply = () => {
    const theme = remembered() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new CustomEvent("themechange"));
  };
  window.toggleTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      // Choosing what the system says anyway means to follow the system again.
      if ((next === "dark") === system.matches) localStorage.removeItem("surgetank.theme");
      else localStorage.setItem("surgetank.theme", next);
      apply();
    } catch {
      document.documentElement.dataset.theme = next;
      dispatchEvent(new CustomEvent("themechange"));
    }
  };
  system.addEventListener("change", apply);
  apply();
})();
