// Dark or light before the first paint: what was chosen here, else what the system prefers. A classic script in the head,
// so that nothing is drawn in the wrong colours first.

;(() => {
  const KEY = 'refrain.theme'
  const root = document.documentElement
  const system = matchMedia('(prefers-color-scheme: dark)')
  /** @type {string | null} */
  let chosen = null
  try {
    chosen = localStorage.getItem(KEY)
  } catch (error) {
    console.info('the choice of colours is not kept:', error)
  }

  const isDark = () => (chosen === 'dark' || chosen === 'light' ? chosen === 'dark' : system.matches)
  const show = () => {
    root.dataset['theme'] = isDark() ? 'dark' : 'light'
  }
  show()
  system.addEventListener('change', show)

  Object.assign(globalThis, {
    refrainTheme: {
      isDark,
      toggle() {
        chosen = isDark() ? 'light' : 'dark'
        show()
        try {
          localStorage.setItem(KEY, chosen)
        } catch (error) {
          console.info('the choice of colours is not kept:', error)
        }
        return isDark()
      },
    },
  })
})()
