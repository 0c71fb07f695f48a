// The texts of a page whose contrast is too low by WCAG 2.2, 1.4.3: 4.5, or 3 for large text.
() => {
  const parse = colour => {
    const [r, g, b, a = 1] = colour.match(/^rgba?\((.*)\)$/)[1].split(/[ ,/]+/).map(Number)
    return { rgb: [r, g, b], a }
  }
  const over = (top, alpha, below) => top.map((value, i) => alpha * value + (1 - alpha) * below[i])
  const luminance = rgb => {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const behind = element => {
    if (element === null) return [255, 255, 255]
    const { rgb, a } = parse(getComputedStyle(element).backgroundColor)
    return a === 1 ? rgb : over(rgb, a, behind(element.parentElement))
  }
  const opacity = element =>
    element === null ? 1 : Number(getComputedStyle(element).opacity) * opacity(element.parentElement)
  const found = []
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue
    const style = getComputedStyle(element), size = parseFloat(style.fontSize)
    const box = element.getBoundingClientRect()
    if (!box.width || !box.height) continue
    const { rgb, a } = parse(style.color), ground = behind(element)
    const pair = [luminance(over(rgb, a * opacity(element), ground)), luminance(ground)].sort((x, y) => x - y)
    const contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)
    if (contrast < (isLarge ? 3 : 4.5)) found.push(`${text.slice(0, 40)}: ${contrast.toFixed(2)} (${element.className})`)
  }
  return found
}
