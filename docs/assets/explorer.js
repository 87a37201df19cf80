// The interactive page says how high it is, and its frame becomes as high: nothing scrolls inside.
addEventListener("message", (event) => {
  for (const frame of document.querySelectorAll("iframe.explorer"))
    if (event.source === frame.contentWindow && event.data.explorerHeight > 0)
      frame.style.height = `${event.data.explorerHeight + frame.offsetHeight - frame.clientHeight}px`;
});
for (const frame of document.querySelectorAll("iframe.explorer"))
  frame.contentWindow.postMessage("how high?", "*"); // it may have been there first
