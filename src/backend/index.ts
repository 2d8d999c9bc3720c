// The family of what generates. A re-export is a registration: the quoted name is the one that config's backend.kind uses.

export { scripted } from './scripted.js'
