// Formulas are set by the MathJax that lies beside this file; nothing is fetched from elsewhere.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { processHtmlClass: "arithmatex", ignoreHtmlClass: ".*|", enableMenu: false },
};
