// The rules by which earlier reasoning is shown to a model, by the name that a model card uses (formats.retention).

export { asSent as 'as-sent' } from './as-sent.js'
export { dropAtUserTurn as 'drop-at-user-turn' } from './drop-at-user-turn.js'
export { keepWithTools as 'keep-with-tools' } from './keep-with-tools.js'
